"""Checks of a log (propose, by first_rows, label, guess_kind, guess_time and held_out, then pre_check and
reject_causes) and of a prepared folder (inspect, suggest_crosses).

Letters: n rows, V distinct values of a column, N numeric columns, C categorical columns, P positions of their ids.
"""
