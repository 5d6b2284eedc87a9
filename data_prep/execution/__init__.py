"""Run the work of a preparation on several processes, and resume it after an interruption.

The modules:
- `prepared_folder`: make the output folder under another name until it is complete.
- `pieces`: store the results of tasks in temporary files.
- `tasks`: start worker processes on this machine, in a Dask cluster or under MPI, run the tasks of a pass over the log
  on them, and run further tasks during the pass.
"""
