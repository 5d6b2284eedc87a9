"""A model that learns from a log as it comes, part by part.

The modules:
- `online_settings` and `online_launch`: the settings of an online run, and how it begins or resumes.
- `log_parts`: the next part of the log, its rows, and the guard that holds unusual parts aside.
- `online_trainer`: score each part, train on it, save. `expiry`: which values lose their ids.
- `candidate`: whether the model is good enough to publish. `publish`: write its bundle for the service.
- `state`: the status that a watcher reads, and the release of parts. `progress` and `online_page`: figures of the
  last parts, as a page and beside the bundles.

    part -> score -> train on each row once -> checkpoint, with the list of parts -> bundle

The run's folder is that of a training, and so are tables, step and checkpoints. A part is trained on in whole or not at
all: the checkpoint after it has the parts so far in its manifest, and everything else follows from the checkpoint. So
after a kill at any moment the same command ends with the same weights as one that was never killed.

Letters: n rows, V ids.
"""
