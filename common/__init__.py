"""Shared code that knows neither clicks nor tables.

The modules:
- `settings`: settings as dataclasses. `yaml_settings`: their values from YAML files and command lines. `arguments`:
  arguments that several commands share.
- `files`: atomic writes, locks, checksums. `arrays`: arrays in files and in memory.
- `native_library`: load C++ libraries.
- `console`: progress bars and log lines. `text`: names and numbers in messages. `html`: pages with charts.
- `packages`: check that required packages are installed.
- `signals`: stop a program at a safe point. `process`: limits of the process, its end, other processes.
"""
