"""The commands: train, online, sweep, evaluate, baseline, checkpoint, export, predict, serve, bundle, fold.

`app.api` offers them as Python functions.
"""
