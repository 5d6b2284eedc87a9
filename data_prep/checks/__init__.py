"""Checks of a log (propose, by first_rows, label, kinds and held_out, then pre_check and rejects) and of a prepared
folder (inspect, suggest_crosses).
"""
