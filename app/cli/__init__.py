"""Define the commands: train, online, sweep, evaluate, baseline, checkpoint, export, predict, serve, bundle, fold.

`app.api` offers most of them as Python functions.
"""
