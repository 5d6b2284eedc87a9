"""What is counted of a log: value_counts, text_counts, profile; statistics (all of them), file."""
