"""The tables in C++: library (the C interface), rows (touched rows, snapshots), tables (the backend), lists, csrc/."""
