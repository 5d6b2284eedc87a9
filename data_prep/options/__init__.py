"""Options of a preparation: log_format, kinds (of its columns), time_forms (how its times are written), format_checks,
columns (the categorical ones), prepare_options, options_file (which reads them), executor (of a pass), plain_values
(from JSON).
"""
