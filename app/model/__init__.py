"""The dense part: wide_deep, dense_layer (operators) and native_layer (csrc/), batch_norm, dropout, recompute,
graph (forward, backward, losses), optimizers. Imports MindSpore.
"""
