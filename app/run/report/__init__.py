"""Draw `report.html` of a run, or of several runs in the same charts, from the files of the run folders.

`quality`, `column_effects` and `speed` draw the sections. `run_report` assembles the page of runs, and `sweep_report`
the page of a sweep.
"""

from app.run.report.run_report import NOT_WRITTEN, REPORT_FILE, leave_report, report_page, write_report
from app.run.report.sweep_report import RUN, write_sweep_report

__all__ = ["NOT_WRITTEN", "REPORT_FILE", "RUN", "leave_report", "report_page", "write_report", "write_sweep_report"]
