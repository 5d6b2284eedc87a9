"""Turn the values of categorical columns into ids.

- `vocabulary` holds the id of each value of a column, and reads and writes vocabulary.parquet. `fit` makes a vocabulary
  from counts of values.
- `encoder` turns raw lines into rows of ids and numbers. It finds ids in search tables that are made from a vocabulary.
- `prepared_vocabulary` reads the vocabulary of a prepared folder: as the base of another preparation, as an encoder, or
  for an exported model (bundle). `growing` adds values to a vocabulary during online training.
- `rows_to_score` reads rows from a log or a table, and `from_values` reads them from lists and mappings.

Array shapes use these letters: n rows, C categorical columns, N numeric columns, K values of a field, V ids of the
vocabulary, P ids of a row.
"""
