"""Train a model on a log as it comes, one part after another.

- `online_options`: the options of an online run. `online_start`: its settings, and how it begins or resumes.
- `log_parts`: finds, reads and checks the next part.
- `online_trainer`: scores each part, trains on it, and saves a checkpoint.
- `candidate`: decides if the new model is good enough to publish. `publish` writes its bundle for the service.
- `expiry`: chooses the values that lose their ids.
- `state`: the status for monitoring, and the release of parts that were held aside.
- `progress`, `online_page`: the page about the last parts.

    part -> score -> train on each row once -> checkpoint, with the list of parts -> bundle

The run's folder has the form of any training's, with the same tables, step and checkpoints. A part is trained on
completely or not at all: the manifest of the checkpoint after it lists all parts so far, and everything else follows
from the checkpoint. So if a process is killed at any time, the same command ends with the same weights as without the
kill.

Shapes use n for rows and V for ids.
"""
