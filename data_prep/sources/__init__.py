"""Obtain click logs: download a real one, or make a synthetic one.

`download` fetches a log. `synthetic` writes a synthetic log. `shape` defines its distributions of values, their changes
over time, and the probability that a row is a click.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric fields, C
categorical fields.
"""
