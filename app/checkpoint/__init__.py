"""Checkpoints, whole or not there: disk, array_file, slices, manifest, write, read, background, retention;
zoo reads the model zoo's.
"""
