"""Make HTML pages of charts and tables. Each page is one file that loads nothing from other files or the network.

`charts` prepares the data of each chart, which charts.js draws in the browser. `page` makes the page around the charts.
"""
