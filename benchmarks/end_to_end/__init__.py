"""Raw text log to AUC and log loss on the test rows, by this project and by three usual programs.

- `__main__`: runs the contenders in turns. `columns`: the rows and splits that all of them share.
- `this_project`, `polars_pytorch`, `pandas_lightgbm`, `hashed_sgd`: one contender each, as a program.
- `commands`: times the project's commands of two commits.
"""
