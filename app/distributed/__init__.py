"""Several processes: mpirun, process_group, watchdog, exchange, sharded_tables with batch_kernels,
gradient_sum. MPI is loaded on demand.

Letters: B rows of this rank's batch, C looked-up fields, D embedding width, U unique ids of this rank's batch, in the
order of owners, R ids requested of an owner, in the order of ranks.
"""
