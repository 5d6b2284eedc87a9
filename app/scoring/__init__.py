"""Score rows with a bundle, which needs neither MindSpore nor MPI. The package `trained` scores with a checkpoint and
the training code instead.

- `bundle_folder`: the files of a bundle and its manifest.
- `bundle_tables`: the embedding tables of a bundle, mapped into memory.
- `bundle_model`: an opened bundle, with the tower in onnxruntime and its golden rows.
- `predictor`: scores raw rows given as lines, mappings or tables, also for MLflow. `batch_prediction` scores a whole
  log.
- `explain`: splits a row's logit into one part for each column, or averages the effects of columns over many rows.
- `distribution`: counts the rows on which a model was evaluated (held-out rows), to detect drift of later rows.
- `bundle_writer`: writes bundles, and folds (merges) a whole bundle and its deltas into one.
- `trained`: opens a checkpoint with its data, evaluates it and exports it as a bundle.

Shapes use these letters: n rows (in `bundle_tables` and `bundle_writer`: ids of one lookup), B rows of one lookup, C
fields, P positions of their ids in a row (a field with lists has several), N numeric columns, K columns of the log that
are fields, D embedding width, T rows of the tables, R deleted ids, V ids, G groups of 64 ids.
"""
