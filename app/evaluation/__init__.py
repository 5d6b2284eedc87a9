"""A model evaluated: evaluate, score_bins, metrics, grouped_auc, selection (the best), results, text."""
