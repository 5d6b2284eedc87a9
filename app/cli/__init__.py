"""The commands: each module parses the arguments of one command, calls the package that does the work, and prints.

They are train, online, sweep, evaluate, baseline, checkpoint, export, predict, serve, bundle and fold. `app.api` offers
the same work as Python functions.
"""
