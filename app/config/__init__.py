"""Every setting of a run: config (all sections), by_rows, run_settings, optimizer_settings, schedules and
flags (of other programs). The file device applies its section, and imports MindSpore when it is called.
"""
