"""Pages in one file that loads nothing from outside: charts (data for charts.js) and the page around them."""
