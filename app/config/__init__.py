"""Every setting of a run: config (all sections), by_rows, run_settings, optimizer_settings, schedules, parallel, and
flags (of other programs). No MindSpore.
"""
