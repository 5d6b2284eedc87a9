"""Checks of a log (pre_check, rejects) and of a prepared folder (inspect)."""
