"""A log or a prepared folder examined: pre_check with rejects and leaks, inspect."""
