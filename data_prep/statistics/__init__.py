"""Counts of a log: value_counts, profile (for the report), statistics (all), statistics_file (statistics.json)."""
