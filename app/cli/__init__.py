"""The commands: train, rank (one of its processes), online, sweep, evaluate, baseline, checkpoint, export,
predict, serve, bundle. The file notebook has them as functions.
"""
