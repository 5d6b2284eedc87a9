"""Manage the folder of a training run: its files, its locks, and whether a launch resumes it.

- `decision`: decides whether a launch (one start of a training) begins a new run, resumes an unfinished one, or
  continues a finished one.
- `identity`: the settings and data that must stay the same when a run is resumed.
- `claim`: locks the run folder, and renames the folder of an older run.
- `folder`, `logs`: write the files of a run.
- `record`: reads the files of a run for its report.
- `older`: upgrades the settings of runs that an earlier release wrote.
- `training_loss`: detects a model that has learned nothing.
- `stop_signals`: stops a run early, after a signal or at the time limit.
- `rank`: runs one process of a job with several ranks.
- `report/`: draws `report.html`.
"""
