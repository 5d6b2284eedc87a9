"""Implement the table backend in C++.

The modules: `library` (calls into the C++ library), `history` (the steps so far, for `adam`), `rows` (touched rows
and snapshots), `tables` (the backend itself). The C++ sources are in `csrc/`.
"""
