"""Checks of a log (propose, by first_rows, label, kinds and held_out; pre_check, rejects) and of a prepared folder
(inspect, suggest_crosses).
"""
