"""The commands: train, rank and server (its processes), evaluate, baseline, checkpoint, export_rows, export, predict,
bundle; notebook has them as functions.
"""
