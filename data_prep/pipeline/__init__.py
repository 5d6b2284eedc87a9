"""Prepare a raw log: read it once or twice, encode and split its rows, and write a prepared folder.

`prepare` runs the stages in this order: `count` and `first_pass` collect statistics and fit the vocabulary,
`second_pass` encodes rows, `split` assigns them to train, valid and test, `shuffle` orders training rows,
`split_files` writes MindRecord files, and `make_schema` describes the folder.

`disk_space` checks beforehand that the disk has room. `zoo_layout` rewrites the files in the model zoo's layout if
that is asked for. `in_memory` prepares a table that is in memory.

Array shapes use these letters: n rows, N numeric columns, C categorical columns.
"""
