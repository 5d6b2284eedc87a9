"""Checks of a log and of a prepared folder.

`propose` describes a log; it uses first_rows, label, guess_kind, guess_time and held_out. `pre_check` tries the first
rows of a log, `reject_causes` and `encodings` explain rejected lines. `inspect` and `suggest_crosses` read a prepared
folder.

Letters: n rows, V distinct values of a column, N numeric columns, C categorical columns, P positions of their ids.
"""
