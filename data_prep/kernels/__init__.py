"""The functions of arrays that take most of the time: rows (the arrays), strings, lists, crosses, parse, reference
(NumPy), native (C++, csrc/), choose (one of the two), arrow (strings from and to pyarrow).
"""
