"""Evaluation of a model: evaluate, score_bins, metrics, grouped_auc, slices (of the rows), calibration, selection (of
the best), results, text.
"""
