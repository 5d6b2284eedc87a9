"""Evaluation of a model: evaluate, score_bins, metrics, grouped_auc, selection (of the best), results, text."""
