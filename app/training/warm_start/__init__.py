"""Start a new run with the weights of a trained model, its source.

- `source`: opens the trained model, and finds its row for each id of the new run.
- `take_over`: takes over rows of the tables, and the tower, in which some arrays have a block of rows for each field.

Shapes use V for the vocabulary size, N for numeric fields, C for looked-up fields, D for the embedding width, H for the
width of the first layer and n for rows that are read at once.
"""
