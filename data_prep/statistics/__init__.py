"""Counts of a log: value_counts, profile (for the report); statistics (all of them), statistics_file (statistics.json)."""
