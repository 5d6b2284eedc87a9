"""Count the rows and values of a log.

The modules:
- `value_counts`: counts of categorical values in bounded memory.
- `statistics`: all statistics of a log, also those that only the report shows, and the file statistics.json.
- `sketch`: counts of the values of an endless log in fixed memory.

Array shapes are written with these letters: n rows, K distinct values of a field.
"""
