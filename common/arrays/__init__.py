"""Arrays in files and in memory.

The modules:
- `format`: files of arrays in the safetensors format: make and read their headers, and map their arrays into memory.
- `disk`: write and read any file, or a file of arrays, sequentially and with a checksum.
- `pages`: memory on huge pages that is used repeatedly. `hashing`: hashes of 64-bit and 32-bit numbers.
"""
