"""Options of a preparation: the format of the log, and how it is encoded, split and written.

- `log_format` describes a log: `kinds` defines the kinds of its columns and the ways to write times, and
  `format_checks` checks the rules that a format must obey.
- `columns` derives the categorical columns of the prepared folder, and `prepare_options` has all settings of a
  preparation.
- `options_file` reads options from files and from the command line.
- `executor` names the kinds of workers.
"""
