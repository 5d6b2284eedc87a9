"""The way of the data, in order: count, fit, encode, split, shuffle, write, describe; prepare runs them.

disk_space warns before, zoo_layout writes the other layout after. in_memory prepares and describes a table.
"""
