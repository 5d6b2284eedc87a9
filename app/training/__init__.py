"""Train a model on a prepared folder.

- `start`: one launch, from the first check to the final status. `validate`: rules between settings.
- `context`: what all parts of a launch share.
- `assemble`: builds tables, model, optimizers and step from the settings. `loop` trains.
- `step/`: one training step.
- `learning_rates`, `saving`: schedules and checkpoints.
- `server`: a rank that only owns rows.
- `auto/`: settings chosen by the data, logistic regression as a baseline, and sweeps.
- `warm_start/`: a new run that begins with the weights of a trained model.
"""
