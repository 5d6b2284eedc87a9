"""A model out of training: bundle_folder (its folder and manifest), bundle_tables (the tables, mapped), onnx_tower
(ONNX), predictor (raw rows to scores), explain (the parts of columns in them), batch_prediction (a whole log), pyfunc
(for MLflow); write_bundle and made_rows write a bundle, delta one with changes only; distribution counts the
held-out rows.

Nothing here imports MindSpore or MPI.
"""
