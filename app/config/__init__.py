"""Every setting of a run: config (all sections), run, optimizers, schedules, parallel. No MindSpore."""
