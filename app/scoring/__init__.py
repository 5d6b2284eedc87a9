"""A model out of training: bundle_folder (its folder and manifest), bundle_tables (the tables, mapped), onnx_tower
(ONNX), bundle_model (all of it, open, and its golden rows), explain (the parts of columns in logits), effects
(over many rows), predictor (raw rows to scores), batch_prediction (a whole log),
pyfunc (for MLflow), bundle_writer, delta (folded), distribution (counts of held-out rows).

Nothing here imports MindSpore or MPI.
"""
