"""What a preparation is told: log_format, columns (the categorical ones), prepare_options; suspect
tells folders that were made with wrong ids.
"""
