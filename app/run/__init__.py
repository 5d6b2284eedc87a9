"""Manage the folder of a training run: its files, its locks, and whether a launch resumes it.

- `decision`: decides whether a launch (one start of a training) begins a new run, resumes an unfinished one, or
  continues a finished one.
- `identity`: the settings of runs of any release, and those settings and data that must stay the same when a run is
  resumed.
- `claim`: locks the run folder, and renames the folder of an older run.
- `folder`: writes the files of a run, with its logs.
- `record`: reads the files of a run for its report, and detects a model that has learned nothing.
- `stop_signals`: stops a run early, after a signal or at the time limit.
- `rank`: runs one process of a job with several ranks.
- `report`: writes the page `report.html` of runs or of a sweep. `quality` draws its sections on the model.
"""
