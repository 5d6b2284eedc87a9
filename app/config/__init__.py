"""Every setting of a run: config (all sections), by_rows, run_settings, optimizer_settings, schedules, parallel; other
programs' flags.

No MindSpore.
"""
