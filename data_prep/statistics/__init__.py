"""Count the rows and values of a log.

The modules:
- `value_counts`: exact counts of the values of categorical fields; counts that exceed a memory limit go to disk.
- `statistics`: all statistics of a log, also those that only the report shows, and the file statistics.json.
- `sketch`: approximate counts of values in fixed memory, for a log that never ends.

Array shapes are written with these letters: n rows, K distinct values of a field.
"""
