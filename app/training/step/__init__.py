"""Take training steps: look up rows, compute losses and gradients, update rows.

- `step`: the step over tables outside the graph, also of several ranks. `rank_graphs`: the MindSpore graphs of such a
  step.
- `first_layer`: decides when each distinct row is passed to the device only once.
- `precision`: chooses float32 or bfloat16.
- `stock_step`: the tables and the step with MindSpore's own operators.

Shapes use B for the batch size, n for the rows of this batch (n < B only in an epoch's last batch), C for categorical
fields, N for numeric fields, D for the embedding width, U for distinct rows and V for the vocabulary size. The backend
stock looks up F fields: F is C, or N + C if numeric fields have embedding rows too (`model.fold_numeric=false`). The
arrays that are searched for a bad value after a failed step have F fields of W columns each.
"""
