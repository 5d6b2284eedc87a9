"""The whole way from a raw log: to AUC and log loss on the test rows, by this project and by three usual programs, and
to a served model.

- `__main__`: runs the contenders in turns. `columns`: the rows and splits that all of them share.
- `this_project`, `polars_pytorch`, `pandas_lightgbm`, `hashed_sgd`: one contender each, as a program.
- `rehearsal`: runs all stages, from raw lines to a served model, on a log of Criteo's size.
- `commands`: times the project's commands of two commits. `cores`: times them on one core and on several.
"""
