"""`report.html` of a run, or of several laid over one another: one file, drawn from the run folders alone."""

from app.report.page import REPORT_FILE, leave_report, report_page, write_report

__all__ = ["REPORT_FILE", "leave_report", "report_page", "write_report"]
