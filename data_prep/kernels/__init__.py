"""The array functions that take most of a preparation's time, in NumPy and in C++.

- `parsed` defines chunks of lines and the rows that the parser makes of them, and combines the values of columns to
  crosses. `strings` defines arrays of byte strings, and of lists of byte strings.
- `parse` turns lines into arrays and rejects bad lines. `times` parses times.
- `numpy_kernels` and `native` (C++ in csrc/) have the same functions. `native` also chooses between the two.

Array shapes use these letters: n rows (in `strings`: strings), C categorical columns, N numeric columns, K values of a
field. M is the number of values in the lists of all rows, and in `parsed` the number of integer columns.
"""
