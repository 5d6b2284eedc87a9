"""`report.html` of a run, or of several laid over one another, drawn from the run folders alone: quality,
column_effects and speed make its sections, run_report the page, sweep_report that of a sweep.
"""

from app.run.report.run_report import NOT_WRITTEN, REPORT_FILE, leave_report, report_page, write_report
from app.run.report.sweep_report import RUN, write_sweep_report

__all__ = ["NOT_WRITTEN", "REPORT_FILE", "RUN", "leave_report", "report_page", "write_report", "write_sweep_report"]
