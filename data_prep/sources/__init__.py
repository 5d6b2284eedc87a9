"""Sources of logs: download, and synthetic with its shape, drift and clicks."""
