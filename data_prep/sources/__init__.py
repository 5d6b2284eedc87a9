"""Obtain logs: download a real one, or make a synthetic one.

`download` fetches a log. `synthetic` writes a synthetic log, from the distributions, the changes over time, and the
click model in `shape`.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric fields, C
categorical fields.
"""
