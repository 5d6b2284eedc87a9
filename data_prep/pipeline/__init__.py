"""The way of the data, in order: count, first_pass, second_pass, split, shuffle, split_files, make_schema. prepare runs
them.

disk_space warns before, zoo_layout writes the other layout after. in_memory prepares and describes a table.

Letters: n rows, N numeric columns, C categorical columns.
"""
