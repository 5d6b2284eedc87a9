"""The dense part: wide_deep, dense_layer (operators), native_layer and distinct_layer (csrc/, which layer_library
loads), batch_norm, dropout, recompute, graph (forward, backward, losses), tower_optimizers, native_tower (all of a step
without a graph).
Imports MindSpore, but for native_library.
"""
