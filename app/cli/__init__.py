"""The commands: train, online, sweep, evaluate, baseline, checkpoint, export,
predict, serve, bundle, fold. The file notebook has them as functions.
"""
