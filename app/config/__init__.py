"""Every setting of a run: config (all sections), by_rows, run, optimizers, schedules, parallel; other programs' flags.

No MindSpore.
"""
