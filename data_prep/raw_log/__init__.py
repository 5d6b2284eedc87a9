"""Read the raw log from disk or from a cloud store.

- `storage` opens paths and URIs, `log_files` finds the files of a log, and `compression` decompresses them.
- `formats` is the table of the formats of files. `text_lines`, `json_lines`, `parquet` and `feather` read one format
  each, and yield chunks of lines. `arrow_to_text` turns the rows of tables into lines.
- `reading` makes passes over the whole log with workers, and `sample` reads only its first rows.
"""
