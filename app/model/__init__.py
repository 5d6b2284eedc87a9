"""Build the dense part of the model, and compute its losses, gradients and updates.

Without MindSpore:
- `dense_state`: the parameters of the dense model, the states of their optimizers, and the keys of dropout masks.
- `native_tower`: the library of C++ kernels (`csrc/`), and a whole step made of them, without a graph.

As MindSpore graphs:
- `wide_deep`: the cells of the dense model, and how a run's model is made.
- `dense_layer`: a hidden layer made of MindSpore's operators or C++ kernels, and batch normalization.
- `graph`: forward pass, losses and backward pass as a MindSpore graph.
- `tower_optimizers`: the optimizers of dense parameters.

Array shapes are written with these letters: B rows of a batch, C looked-up fields, N numeric fields, M vector inputs
(the components of all vectors, and for each vector whether it is missing), D embedding width, U distinct rows of a
batch. A layer has K inputs and H units. L is the number of hidden layers. Numbers and vectors of a batch are passed as
one array, [B, N + M].
"""
