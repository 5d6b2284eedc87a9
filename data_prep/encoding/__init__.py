"""From values to ids: vocabulary (the id of each value), vocabulary_file (vocabulary.parquet), base (of another
folder), booleans (their texts in it), fit, lookup_file (search tables), encoder (raw lines to rows),
prepared_vocabulary (of a folder, to use elsewhere); from_values and from_table (rows outside of a preparation).
"""
