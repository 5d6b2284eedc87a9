"""Define every setting of a run.

The modules:
- `config`: `Config`, which has all sections, and most of these sections.
- `optimizer_settings`: the sections of the three optimizers, with the schedules of their learning rates.
- `flags`: the settings that correspond to the flags of the MindSpore model zoo.
- `device`: the section device, and functions that apply it. Only these functions import MindSpore.
"""
