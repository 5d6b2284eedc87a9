"""The dense part: wide_deep (the cells, and how a run's are made), dense_layer (operators), native_layer and
distinct_layer (csrc/, which layer_library loads), batch_norm, dropout, recompute, graph (forward, backward, losses),
tower_optimizers, native_tower (all of a step without a graph). Imports MindSpore, but for layer_library.

Letters: B batch, C looked-up fields, N numeric fields, D embedding width, U distinct rows. A layer has K inputs and H
units, L layers are a run of them.
"""
