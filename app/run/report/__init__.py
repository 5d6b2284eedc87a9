"""`report.html` of a run, or of several laid over one another, drawn from the run folders alone: settings,
quality, speed, on parts; page puts them together.
"""

from app.run.report.page import REPORT_FILE, leave_report, report_page, write_report

__all__ = ["REPORT_FILE", "leave_report", "report_page", "write_report"]
