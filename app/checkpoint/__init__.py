"""Checkpoints, complete or not there: disk, array_file, slices, manifest, write, read, retention;
zoo reads the model zoo's.
"""
