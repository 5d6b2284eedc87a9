"""Sources of logs: download, and synthetic with its shape, drift and clicks.

Letters: n rows (of a block, if there are blocks), N numeric fields, C categorical fields.
"""
