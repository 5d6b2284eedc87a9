"""Counts of a log: value_counts, profile (for the report), statistics (all), statistics_file (statistics.json).

sketch counts the values of an endless one in a fixed memory.

Letters: n rows, K distinct values of a field.
"""
