"""Decide in place of a user: settings by the data, a lower bound for the metrics, and the best of many runs.

The modules:
- `by_rows`: the settings of a training, and those that follow from the prepared rows.
- `regression`: logistic regression, and how much it gains from crosses (combinations of fields), which `by_rows` needs.
- `memory`: the memory and the disk space that a training will take.
- `sweep_runs`: train a run for each of many settings, and compare them.
"""
