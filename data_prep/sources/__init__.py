"""Obtain click logs: download a real one, or make a synthetic one.

`download` fetches the log of a data set. `synthetic` writes a synthetic log. `shape` defines the distributions of a
synthetic log's values, their changes over time, and the probability that a row is a click.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric fields, C
categorical fields.
"""
