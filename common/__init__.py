"""Code that both `app` and `data_prep` use, and that depends on neither.

The modules:
- `settings`: settings as dataclasses. `yaml_settings`: read settings from YAML files and command lines. `arguments`:
  the parser of command lines, and the arguments that several commands share.
- `files`: atomic writes, locks, checksums. `arrays`: files of arrays, and memory for arrays.
- `native_library`: load C++ libraries.
- `console`: progress bars and log lines. `text`: names and numbers in messages. `html`: pages with charts.
- `packages`: check that required packages are installed.
- `signals`: stop a program at a safe point. `process`: memory limits, cores and signals of this process, and starting
  other processes.
"""

# Version of the project. It is repeated in pyproject.toml, which the container image of the service does not contain.
RELEASE = "1.1.0"
