"""Checkpoints, complete or not there: disk, array_file, array_writer, read_once, tower_slices, manifest, write (into a
partial folder that is renamed into place), read, retention. A file of the model zoo is read by zoo.

Letters: T rows of a table, n rows of one read, V vocabulary size, D embedding width, H width of a layer.
"""
