"""Several ranks: data_parallel (each trains on its slice of a batch) and server (a rank that owns rows alone)."""
