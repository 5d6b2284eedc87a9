"""report.html of a prepared folder: timing and numeric make sections of it, data_report the others and the page."""
