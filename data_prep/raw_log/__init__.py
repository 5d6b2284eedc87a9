"""Read the raw log from disk or from a cloud store.

- `storage` opens paths and URIs, `log_files` finds the files of a log, and `compression` decompresses them.
- `chunks` reads text files, `parquet` Parquet files, and `json_lines` JSON files. All of them yield chunks of lines.
- `reading` makes passes over the whole log with workers, and `sample` reads only its first rows.
"""
