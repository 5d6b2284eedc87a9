"""Train with several processes, by MPI. A job of one process does not load MPI.

The modules:
- `mpirun`: start and supervise a job. `daemon`: start mpirun's daemon on another host.
- `process_group`: the processes of a job, calls among them, and sums of the tower's gradients over them.
- `watchdog`: report ranks that let the others wait.
- `sharded_tables`: tables whose rows are spread over ranks, and messages with embedding rows and gradients,
  with the kernels of `batch_kernels`.

Array shapes are written with these letters: B rows of this rank's batch, C looked-up fields, D embedding width, U
distinct ids of this rank's batch, in the order of their owners, R ids that other ranks request from this owner, in
the order of ranks.
"""
