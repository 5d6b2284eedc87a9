"""Use a trained model outside its run: score, evaluate and export it.

- `trained_model`: a checkpoint together with its run's settings and a prepared data folder.
- `evaluate_split`: loads a checkpoint's model for scoring, and evaluates it on a split. `follow` evaluates each
  checkpoint that a run writes.
- `export_rows`: writes the rows of a table as Parquet.
- `export_bundle`: writes a bundle, with the help of `write_bundle`, `write_tower` (ONNX), `bundle_code`, `made_rows`
  and `card` (README.md), and compares the bundle with the training code. `write_id_model` (ONNX) and `write_mindir` add
  models for other runtimes.

Shapes use these letters: n rows or ids of one call, C fields, N numeric fields, D embedding width (1 in the wide
table), H width of a hidden layer, T touched rows.
"""
