"""Checkpoints, complete or not there: disk, array_file, tower_slices, manifest, write, read, retention;
zoo reads the model zoo's.
"""
