"""Turn the values of categorical columns into ids.

- `vocabulary` holds the id of each value, `vocabulary_file` reads and writes vocabulary.parquet, and `fit` makes a
  vocabulary from counts.
- `base` reads the vocabulary of another prepared folder. `booleans` finds out how that vocabulary writes true, false
  and whole numbers.
- `lookup_file` stores search tables, and `encoder` turns raw lines into encoded rows with them.
- `prepared_vocabulary` opens the vocabulary of a prepared folder and exports it to bundles. `growing` adds values to a
  vocabulary in use.
- `from_values`, `from_table` and `from_log` read rows that are not prepared, such as rows to score.

Array shapes use these letters: n rows, C categorical columns, N numeric columns, K values of a field, V ids of the
vocabulary, P ids of a row.
"""
