"""Sources of logs: download, and synthetic with its shape, drift and clicks.

Letters: n rows (of a block, where there are some), N numeric fields, C categorical fields.
"""
