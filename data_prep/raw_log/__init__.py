"""The log as stored: storage, log_files, compression, chunks and parquet; reading (passes over all of it),
sample; line_cells and scoring_pass, to score it.
"""
