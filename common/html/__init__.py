"""Make HTML pages in one file that loads nothing from outside.

`charts` makes the data that charts.js draws, `page` the page around the charts.
"""
