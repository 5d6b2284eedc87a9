"""Write a table as a log that `prepare` reads, as Parquet and as CSV: write_log.py TABLE PARQUET_LOG CSV_LOG."""

import sys

from pyspark.sql import SparkSession

table, parquet_log, csv_log = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.parquet(table)
# Parquet keeps types and texts as they are. The column `date` becomes folders such as date=2026-11-01.
rows.write.partitionBy("date").parquet(parquet_log)
# Without these options, Spark cuts blanks at both ends of a text and writes a quote within it as \".
csv = {"escape": '"', "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}
rows.write.csv(csv_log, header=True, **csv)
