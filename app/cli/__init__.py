"""The commands: train, rank and server (its processes), evaluate, checkpoint, export_rows; validate has the rules
between settings.
"""
