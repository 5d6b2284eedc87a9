"""Train with several processes, by MPI. A job of one process does not load MPI.

The modules:
- `mpirun`: start and supervise a job. `daemon`: start mpirun's daemon on another host.
- `process_group`: the processes of a job, and calls among them.
- `watchdog`: report ranks that let the others wait.
- `exchange`: messages with embedding rows and gradients. `sharded_tables`: tables whose rows are spread over ranks,
  with the kernels of `batch_kernels`.
- `gradient_sum`: sums of the tower's gradients.

Array shapes are written with these letters: B rows of this rank's batch, C looked-up fields, D embedding width, U
distinct ids of this rank's batch, in the order of their owners, R ids that other ranks request from this owner, in
the order of ranks.
"""
