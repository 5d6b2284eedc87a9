"""The functions of arrays that most time goes into, in NumPy and in csrc/: rows (what they take), texts,
quotes, parse, buckets, counts, lookup, arrow; native (the C++ ones) and choose.
"""
