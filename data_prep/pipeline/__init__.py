"""Prepare a raw log: read it once or twice, encode and split its rows, and write a prepared folder.

`prepare` runs all stages and writes schema.json. `first_pass` collects statistics of the log and fits the vocabulary.
`split_files` runs the second pass: it shuffles the training rows and writes MindRecord files. In both passes, workers
run the tasks that `chunk_tasks` defines. `split` assigns rows to train, valid and test.

`memory_and_disk` divides the memory and checks beforehand that the disk has room. With `layout: zoo`, `zoo_layout`
rewrites the files so that MindSpore's model zoo can read them.

Array shapes use these letters: n rows, N numeric columns, C categorical columns.
"""
