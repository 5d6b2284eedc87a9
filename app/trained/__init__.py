"""A trained model out of its run: trained_model (a checkpoint with its settings and data), load (its model, to score),
evaluate_split, follow (the checkpoints of a run as they are written), export_rows (as Parquet), export_bundle.

A bundle is written by write_bundle, with write_tower (ONNX), bundle_code, made_rows and card (README.md), and compared
with the training code by compare_bundle.

Letters: n rows of one read, C fields, N numeric fields, D embedding width (1 in the wide table), H width of a layer,
T touched rows.
"""
