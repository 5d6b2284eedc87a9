"""Train a model on a growing log: each new part (a file) is scored and then trained on once.

- `online_options`: the options of an online run. `online_start`: the run's settings, and the checks before it begins or
  resumes.
- `log_parts`: finds the next part (a file, or a version of a Delta table), reads it, and holds it aside (does not train
  on it) if it is suspicious.
- `online_trainer`: the loop that scores each part, trains on it, saves a checkpoint and publishes the model.
- `publish`: decides if the model after a part is good enough to be published, and writes its bundle into the folder
  that the service watches.
- `expiry`: chooses the values of categorical fields that lose their ids (expire).
- `state`: the status for monitoring, the release of parts that were held aside, and old bundles and files.
- `progress`: an HTML page about the last parts.

    part -> score -> train on each row once -> checkpoint, with the list of parts -> bundle

The run folder, the embedding tables, the training step and the checkpoints have the same form as in any training run. A
part is trained on completely or not at all: the manifest of the checkpoint after a part lists all parts so far, and a
restarted process takes everything from the checkpoint. So if the process is killed at any time, running the same
command again leads to the same weights as without the kill.

Shapes use n for rows and V for ids.
"""
