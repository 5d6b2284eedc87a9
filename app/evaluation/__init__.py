"""Evaluate a model.

The modules:
- `measure`: run a model over a split. `metrics`: its metrics, from rows counted by `score_bins`.
- `groups`: rows by group, such as user, and AUC within groups. `slices`: metrics of parts of the rows.
- `calibration`: fit probabilities to click rates. `selection`: the best checkpoint.
- `results`: files of evaluations, with `curves` for reports. `metric_text`: evaluations as text.

Array shapes are written with these letters: n rows, K distinct logits, C fields, G values of a field.
"""
