"""report.html of a prepared folder: timing, numeric; page puts it together by the template prepared.html."""
