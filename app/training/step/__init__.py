"""A training step: step (lookup, graph, update), distinct (rows cross to the device once), first_layer (when),
precision, kernel_times, and stock_step with stock_tables, which use MindSpore's operators.

Letters: B batch size, n rows of this batch (n < B only in an epoch's last), C categorical fields, N numeric fields,
D embedding width, U distinct rows, V vocabulary size. `stock` looks up F fields: C, or N + C unfolded. An array of
messages has F fields of W columns.
"""
