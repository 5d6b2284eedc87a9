"""Evaluation of a model: measure, score_bins, metrics, grouped_auc, slices (of the rows), calibration, selection (of
the best), results and their curves, metric_text.

Letters: n rows, K distinct logits, C fields, G values of a field.
"""
