"""Train on several ranks: `data_parallel` (each rank computes a slice of the batch) and `server` (owns rows only)."""
