"""Checks of a log (describe, pre_check, rejects) and of a prepared folder
(inspect, crosses)."""
