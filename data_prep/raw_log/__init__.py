"""Read the raw log from disk or from a cloud store.

- `storage` opens paths and URIs, and reads columns from names of folders such as `date=2026-11-01`. `log_files` finds
  the files of a log. The package `lake` reads Delta and Iceberg tables.
- `formats` is the table of the file formats. `text_lines`, `json_lines`, `parquet` and `feather` each read files of one
  format and yield chunks of lines. `arrow_to_text` turns the rows of tables into lines.
- `reading` makes passes over the whole log with worker processes, or reads only the first rows of each file.
"""
