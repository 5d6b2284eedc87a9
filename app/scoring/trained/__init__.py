"""Use a trained model outside its run: score, evaluate and export it.

- `trained_model`: a checkpoint together with its run's settings and a prepared data folder, loaded for scoring, and
  evaluated on a split. `follow` evaluates each checkpoint that a run writes.
- `export_rows`: writes the rows of a table as Parquet.
- `export_bundle`: writes a bundle, with the help of `write_bundle`, `write_tower` (ONNX) and `code_and_card` (modules
  of this project, and README.md), and compares the bundle with the training code. `write_mindir` adds a model for
  MindSpore.

Shapes use these letters: n rows or ids of one call, C fields, N numeric fields, D embedding width (1 in the wide
table), H width of a hidden layer, T touched rows.
"""
