"""Read Delta and Iceberg tables as logs: find the data files of one version of a table, and how each is read.

- `lake_tables` recognizes the folder of a table, keeps its files from being read as plain files, and returns its data
  files in the order of their commits.
- `delta_table` and `iceberg_table` ask the libraries deltalake and pyiceberg for the files of a table.
- `lake_file` turns the rows of a data file into rows of the table.
"""
