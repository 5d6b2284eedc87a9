"""Options of a preparation: log_format, columns (the categorical ones), prepare_options."""
