"""The log as stored: storage, log_files, compression, chunks, parquet, json_lines, reading (passes over all of it),
sample.
"""
