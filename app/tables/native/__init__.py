"""Implement the table backend in C++.

The modules: `library` (calls into the C++ library, also with the past steps of `adam`), `storage` (the scratch file for
rows that do not fit into memory), `tables` (the backend itself, with its touched rows and snapshots). The C++ sources
are in `csrc/`.
"""
