"""Every setting of a run: config (all sections), by_rows, run, optimizers, schedules, parallel. No MindSpore."""
