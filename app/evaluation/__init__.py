"""Evaluate a model.

The modules:
- `metrics`: count rows by their logit, and by group, such as user, and compute metrics from the counts.
- `measure`: run a model over the rows of a split, and format the result as text.
- `slices`: metrics of parts of the rows.
- `calibration`: fit probabilities to click rates. `selection`: decide which evaluation is the best so far.
- `results`: write and read files of evaluations, with the curves for reports.

Array shapes are written with these letters: n rows, K distinct logits, C fields, G values of a field.
"""
