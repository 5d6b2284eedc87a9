"""Start a new run with the weights of a trained model.

- `source`: opens the model. `origins` maps its rows to the ids of the new run.
- `blocks`: rearranges arrays that are laid out by fields.
- `start_tables`: takes over rows of the tables. `dense`: takes over the tower, and coordinates the warm start.

Shapes use V for the vocabulary size, N for numeric fields, C for looked-up fields, D for the embedding width, H for the
width of the first layer and n for rows that are read at once.
"""
