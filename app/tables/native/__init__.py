"""The tables in C++: library (the C interface), rows (touched rows and snapshots), tables (the backend), csrc/."""
