"""The tables in C++: library (its calls), history (steps so far), rows (touched rows, snapshots), tables (the backend),
csrc/."""
