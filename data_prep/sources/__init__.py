"""Sources of logs: download, and synthetic with its shape and clicks."""
