"""Define every setting of a run.

The modules:
- `config`: `Config`, which has all sections, and the sections model, loss and train.
- `run_settings`, `optimizer_settings`, `schedules`: the other sections.
- `flags`: the settings that correspond to the flags of the MindSpore model zoo.
- `device`: the section device, and functions that apply it. Only these functions import MindSpore.
"""
