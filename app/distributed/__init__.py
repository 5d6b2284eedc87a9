"""Several processes: mpirun, process_group, watchdog, exchange, sharded_tables with batch_kernels,
gradient_sum. MPI is loaded on demand.
"""
