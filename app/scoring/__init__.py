"""A model out of training: bundle (its folder and manifest), rows (the tables, mapped), tower (ONNX), predictor
(raw rows to scores), explain (the parts of columns in them), predict (a whole log), pyfunc (for MLflow); export,
made_rows and card write a bundle, delta one with changes only; distribution counts the held-out rows.

Nothing here imports MindSpore or MPI.
"""
