"""Make report.html of a prepared folder: `data_report` writes the page, and `timing` records the preparation's time."""
