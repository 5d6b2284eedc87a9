"""The functions of arrays that take most of the time: parsed (the arrays), strings, lists, crosses, parse
(lines to arrays, the bad ones rejected), times (cells to milliseconds, time zones), numpy_kernels (NumPy), native
(C++, csrc/, and the choice between the two), counting and native_counting (of training rows).

Letters: n rows (in strings: strings), C categorical columns, N numeric columns, K values of a field. M are the values
of all rows in lists, and the categorical columns of numbers in parsed.
"""
