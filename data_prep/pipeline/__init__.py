"""The way of the data, in order: count (chunk_counter: in workers), split, fit, encode, shuffle, write, describe;
prepare runs them. disk_space warns before, zoo_layout writes the other layout after.
"""
