"""Options of a preparation.

- `log_format` describes a log: `kinds` are the kinds of its columns and the ways to write times, and `format_checks`
  the rules that a format must obey.
- `columns` derives the categorical columns, and `prepare_options` has all settings of a preparation.
- `options_file` reads options from files and the command line.
- `executor` names the kind of workers.
"""
