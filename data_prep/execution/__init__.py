"""How work is run: folder (the output, whole or not there), pieces (finished work on disk), pools, tasks,
memory, stopping.
"""
