"""The functions of arrays that take most of the time: parsed (the arrays), strings, lists, crosses, parse,
numpy_kernels (NumPy), native (C++, csrc/, and the choice between the two), counting and native_counting (of training
rows).
"""
