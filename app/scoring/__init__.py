"""Score rows: with a bundle, without MindSpore or MPI, or in `trained` with a checkpoint and the training code.

- `bundle_folder`: the files of a bundle and its manifest.
- `bundle_tables`: the embedding tables of a bundle, mapped into memory.
- `onnx_tower`: the tower in onnxruntime.
- `bundle_model`: an opened bundle, with its golden rows.
- `predictor`: scores raw rows in any form, also for MLflow. `batch_prediction` scores a whole log.
- `explain`: splits logits into the parts of their columns. `effects` averages effects over many rows.
- `distribution`: counts held-out rows, to detect drift.
- `bundle_writer`: writes bundles and folds deltas.
- `trained_parts`: the report that an online trainer leaves next to its bundles.
- `trained`: opens a checkpoint with its data, evaluates it and exports it as a bundle.

Shapes use these letters: n rows (in `bundle_tables` and `bundle_writer`: ids of one lookup), B rows of one lookup, C
fields, P positions of their ids, N numeric columns, K columns of the log that are fields, D embedding width, T rows of
the tables, R deleted ids, V ids, G groups of 64 ids.
"""
