"""A run that begins with another's model: source, the origins of its rows and blocks of its arrays, start_tables,
dense.
"""
