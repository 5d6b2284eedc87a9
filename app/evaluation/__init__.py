"""Evaluate a model.

The modules:
- `measure`: run a model over the rows of a split. `score_bins`: count these rows by their logit. `metrics`: compute
  metrics from the counts.
- `groups`: count rows by group, such as user, for the AUC within groups. `slices`: metrics of parts of the rows.
- `calibration`: fit probabilities to click rates. `selection`: decide which evaluation is the best so far.
- `results`: write and read files of evaluations, with the `curves` for reports. `metric_text`: evaluations as text.

Array shapes are written with these letters: n rows, K distinct logits, C fields, G values of a field.
"""
