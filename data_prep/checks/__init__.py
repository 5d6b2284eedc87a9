"""Checks of a log (propose, by first_rows, label, guess_kind and held_out, then pre_check, reject_causes and
encodings) and of a prepared folder (inspect, suggest_crosses).

Letters: n rows, V distinct values of a column, N numeric columns, C categorical columns, P positions of their ids.
"""
