"""Run the work of a preparation: prepared_folder (of the output), pieces (results on disk), pools, tasks, memory_limit,
stopping.
"""
