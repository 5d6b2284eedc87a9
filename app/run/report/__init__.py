"""`report.html` of a run, or of several laid over one another, drawn from the run folders alone: quality, speed;
page puts them together by the template run.html.
"""

from app.run.report.page import REPORT_FILE, leave_report, report_page, write_report

__all__ = ["REPORT_FILE", "leave_report", "report_page", "write_report"]
