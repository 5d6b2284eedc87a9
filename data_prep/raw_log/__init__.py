"""The log as stored: storage, log_files, compression, chunks, parquet, reading (passes over all of it),
sample.
"""
