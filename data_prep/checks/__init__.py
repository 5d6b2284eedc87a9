"""Check logs and prepared folders.

- `propose` describes an unknown log: separator, label, and kinds of columns. It uses `first_rows`, `label`,
  `guess_kind`, `guess_time` and `held_out`.
- `pre_check` examines the first rows of a log. `reject_causes` explains why lines are rejected.
- `inspect` verifies a prepared folder, and `suggest_crosses` finds pairs of its fields whose cross would help a model.

Array shapes use these letters: n rows, V distinct values of a column, N numeric columns, C categorical columns, P ids
of a row.
"""
