"""Run the work of a preparation on several processes, and resume it after an interruption.

The modules:
- `prepared_folder`: the output folder while it is made. `pieces`: results on disk.
- `pools`: worker processes of this machine, Dask or MPI. `tasks`: run a pass on them, and single tasks beside it.
"""
