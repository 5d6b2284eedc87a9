"""report.html of a prepared folder: timing, numeric, page."""
