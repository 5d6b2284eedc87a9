"""The commands: train, rank and server (its processes), evaluate, baseline, checkpoint, export_rows, export, predict,
bundle; validate has the rules between settings.
"""
