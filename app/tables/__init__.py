"""Host tables: fields (and the pooling of lists), model_fields (of a run's settings), interface, checks, initial,
optimizers (a step of each, such as FTRL), reference (NumPy), native/ (C++), parts (wide and deep apart), positions (of
lists too), rounding (of bfloat16 rows), backends (which one, and its tables).

Letters: B batch, C looked-up fields, P positions of their ids, n values among those, D embedding width, V vocabulary
size, U unique ids of a batch, T touched rows, S steps so far.
"""
