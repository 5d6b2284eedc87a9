"""The commands of `python -m app`. Each module parses the arguments of one command, calls the package that does the
work, and prints the result.

The commands are train, plan, online, sweep, evaluate, baseline, checkpoint, export, predict, serve, bundle and fold.
`app.api` offers most of them as Python functions.
"""
