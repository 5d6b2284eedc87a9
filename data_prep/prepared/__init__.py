"""Read and write prepared folders, through which data_prep hands data to app.

The modules:
- `schema`: the content of schema.json, and how raw numbers and vectors become inputs of a model.
- `data_files`: the files that schema.json lists, checks for damage, and files that record which ids expired or were
  renumbered.
- `examples`: rows as arrays, also as features of a logistic regression.
- `writer`: write rows as MindRecord files. `reader`: read rows from these files.
- `prefetch`: compute the next items of an iteration in a thread.
- `batches`: rows in batches, in the shuffled order of a training or in the order in which they were written.
- `truth`: the true click probabilities of synthetic logs.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric columns, C
categorical columns, P ids per row (C if no field is a list), V ids in the vocabulary.
"""
