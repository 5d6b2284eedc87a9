"""Count the rows and values of a log.

The modules:
- `value_counts`: counts of the values of categorical fields: exact ones, which go to disk if they exceed a memory
  limit, and approximate ones in fixed memory, for a log that never ends.
- `statistics`: all statistics of a log, also those that only the report shows, and the file statistics.json.

Array shapes are written with these letters: n rows, K distinct values of a field.
"""
