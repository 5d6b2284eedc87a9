"""Make report.html of a prepared folder.

`timing` and `numeric` make sections of the report, `data_report` the others and the page.
"""
