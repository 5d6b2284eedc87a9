"""Hold the embedding tables of the model and their sparse optimizers in host memory.

The modules, in the order of the data flow:
- `fields`: a looked-up field, and how the values of a list field are pooled into one row.
- `interface`: the contract of every backend, and the types that it passes around.
- `checks`: checks of ids, gradients and saved states.
- `initial`: the initial values of rows.
- `optimizers`: one step of each optimizer, such as FTRL or Adam, in NumPy.
- `reference`: the backend in NumPy, with the distinct ids of a batch and sums over the positions of an id.
- `native/`: the backend in C++.
- `rounding`: rows stored in bfloat16.
- `backends`: the tables of a run by its settings: their fields, the backend, and separate tables for a wide and a deep
  part that see different fields.

Array shapes are written with these letters: B rows of a batch, C looked-up fields, P columns of ids (a list
field has several), n values among them, D embedding width, V vocabulary size, U distinct ids of a batch, T
touched rows (rows that were updated or loaded), S steps so far.
"""
