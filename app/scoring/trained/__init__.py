"""Use a trained model outside its run: score, evaluate and export it.

- `trained_model`: a checkpoint together with its settings and data.
- `load`: loads its model for scoring.
- `evaluate_split`: evaluates it on a split. `follow` does so for each checkpoint that a run writes.
- `export_rows`: writes the rows of a table as Parquet.
- `export_bundle`: writes a bundle, with the help of `write_bundle`, `write_tower` (ONNX), `bundle_code`, `made_rows`
  and `card` (README.md). `compare_bundle` compares the bundle with the training code.

Shapes use these letters: n rows of one read, C fields, N numeric fields, D embedding width (1 in the wide table), H
width of a hidden layer, T touched rows.
"""
