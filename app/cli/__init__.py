"""The commands: train, rank (one of its processes), sweep, evaluate, baseline, checkpoint, export_rows, export,
predict, serve, bundle. The file notebook has them as functions.
"""
