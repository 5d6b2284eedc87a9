"""The log as stored: storage, files, compression, chunks and parquet; reading (all of it), sample."""
