"""Obtain logs: download a real one, or make a synthetic one.

`download` fetches a log. `synthetic` writes a synthetic log, from the distributions in `shape`, the changes over
time in `drift`, and the click model in `clicks`.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric fields, C
categorical fields.
"""
