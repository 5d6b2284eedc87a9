"""A model that learns from a log as it comes, part by part: command, online_settings, log_parts (which is next, and its
rows), online_trainer (score, train, save), candidate (is it to be published), expiry (which values lose their ids),
publish (a bundle for the service), state (what a watcher sees and may ask), progress and online_page (the last parts as
a page, and beside the bundles).

    part -> score -> train on each row once -> checkpoint, with the list of parts -> bundle

The run's folder is that of a training, and so are tables, step and checkpoints. A part is trained on in whole or not at
all: the checkpoint after it has the parts so far in its manifest, and everything else follows from the checkpoint. So
after a kill at any moment the same command ends with the same weights as one that was never killed.

Letters: n rows, V ids.
"""
