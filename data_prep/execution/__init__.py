"""Run the work of a preparation: folder (of the output), pieces (results on disk), pools, tasks, memory, stopping."""
