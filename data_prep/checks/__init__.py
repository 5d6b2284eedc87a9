"""Checks of a log (describe, by first_rows, label, kinds and held_out; pre_check, rejects) and of a prepared folder
(inspect, crosses).
"""
