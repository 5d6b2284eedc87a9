"""Arrays in files and in memory.

The modules:
- `format`: files of arrays in the safetensors format. Their headers, and arrays mapped from a file.
- `disk`: sequential writes with a checksum. `write`: write a file of arrays.
- `read`: sequential reads with a checksum, of any file and of a file of arrays.
- `pages`: reused memory on huge pages. `hashing`: a hash of 64-bit numbers.
"""
