"""The log as stored: storage, files, compression, chunks and parquet; reading (passes over all of it), sample."""
