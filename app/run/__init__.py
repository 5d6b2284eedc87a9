"""A run's folder: decision (new, resume, continue), identity, claim (locks, an older run put aside), folder, logs,
event_file, record, older (runs of earlier versions), training_loss (has the model learned anything), report/,
rank (one of the processes of a job).
"""
