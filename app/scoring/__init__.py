"""A model out of training: bundle_folder (its folder and manifest), bundle_tables (the tables, mapped), onnx_tower
(ONNX), bundle_model (all of it, open, and its golden rows), explain (the parts of columns in logits), effects (over
many rows), predictor (raw rows to scores), batch_prediction (a whole log), pyfunc (for MLflow), bundle_writer (and
folding), distribution (counts of held-out rows), trained_parts (what an online trainer reports beside its bundles).

Nothing here imports MindSpore or MPI.

Letters: n rows (in bundle_tables and bundle_writer ids of one lookup), B rows of one lookup, C fields, P positions of
their ids, N numeric columns, K columns that are fields, D width, T rows of the tables, R deleted ids, V ids, G groups
of 64 ids.
"""
