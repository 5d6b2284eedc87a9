"""Evaluate a model.

The modules:
- `measure`: run a model over a split. `metrics`: its metrics, from rows counted by `score_bins`.
- `grouped_auc`: AUC within groups of rows. `slices`: metrics of parts of the rows.
- `calibration`: fit probabilities to click rates. `selection`: the best checkpoint.
- `results`: files of evaluations, with `curves` for reports. `metric_text`: evaluations as text.

Array shapes are written with these letters: n rows, K distinct logits, C fields, G values of a field.
"""
