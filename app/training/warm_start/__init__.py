"""A run that begins with another's model: source, the origins of its rows and blocks of its arrays, start_tables,
dense.

Letters: V vocabulary size, N numeric fields, C looked-up fields, D embedding width, H width of the first layer, n rows
that are read at once.
"""
