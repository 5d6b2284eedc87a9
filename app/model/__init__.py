"""Build the dense part of the model, and compute its losses, gradients and updates.

Without MindSpore:
- `dense_state`: the parameters of the dense model and the states of their optimizers.
- `native_tower`: a whole step as C++ kernels (`csrc/`, loaded by `layer_library`), without a graph.

As MindSpore graphs:
- `wide_deep`: the cells of the dense model, and how a run's model is made.
- `dense_layer`: a hidden layer made of MindSpore's operators. `native_layer` and `distinct_layer`: the same layer as
  C++ kernels.
- `batch_norm`, `dropout`: options of hidden layers.
- `graph`: forward pass, losses and backward pass as a MindSpore graph.
- `tower_optimizers`: the optimizers of dense parameters.

Array shapes are written with these letters: B rows of a batch, C looked-up fields, N numeric fields, M vector inputs
(the components of all vectors, and for each vector whether it is missing), D embedding width, U distinct rows of a
batch. A layer has K inputs and H units. L is the number of hidden layers. Numbers and vectors of a batch are passed as
one array, [B, N + M].
"""
