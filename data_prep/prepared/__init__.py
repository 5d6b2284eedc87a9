"""The prepared folder, the contract with app: schema, data_files (their entries in it), examples, writer,
reader, expired (ids without a value), features, truth (of synthetic logs).

Letters: n rows (of a block, if there are blocks), N numeric columns, C categorical columns, P positions of their ids
(C if no field is a list), V ids.
"""
