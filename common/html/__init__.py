"""Make HTML pages in one file that loads nothing from outside.

`charts` prepares the data of each chart, which charts.js draws in the browser. `page` makes the page around the charts.
"""
