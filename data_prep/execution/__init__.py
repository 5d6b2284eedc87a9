"""How work is run: folder (of the output), pieces (results on disk), pools, tasks, memory, stopping."""
