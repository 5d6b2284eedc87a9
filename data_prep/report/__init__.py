"""report.html of a prepared folder: timing, numeric; data_report puts it together by the template prepared.html."""
