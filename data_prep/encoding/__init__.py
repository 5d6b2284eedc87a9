"""Turn values into ids.

vocabulary holds the id of each value, vocabulary_file is vocabulary.parquet, and fit makes a vocabulary from counts.
base reads that of another folder, booleans finds its texts for true, false and whole numbers. lookup_file holds the
search tables, encoder turns raw lines into rows, prepared_vocabulary takes a folder's vocabulary elsewhere, and growing
adds values to one in use. from_values, from_table and from_log read rows outside of a preparation.

Letters: n rows, C categorical columns, N numeric columns, K values of a field.
"""
