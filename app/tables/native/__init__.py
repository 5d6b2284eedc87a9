"""The tables in C++: library (its calls), rows (touched rows, snapshots), tables (the backend), csrc/."""
