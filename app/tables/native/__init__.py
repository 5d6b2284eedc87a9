"""The tables in C++: library (ctypes), rows, snapshot, tables (the backend), csrc/."""
