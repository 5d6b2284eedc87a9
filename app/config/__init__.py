"""Every setting of a run: config (all sections), run_settings, optimizer_settings, schedules, removed (settings of
earlier releases) and flags (of other programs). The file device has its section and applies it, and imports MindSpore
when it is called.
"""
