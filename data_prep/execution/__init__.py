"""Run the work of a preparation: prepared_folder (of the output), pieces (results on disk), pools, tasks, tasks_beside
(single ones), memory_limit.
"""
