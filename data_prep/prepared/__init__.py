"""Read and write prepared folders, the contract between data_prep and app.

The modules:
- `schema`: the content of schema.json. `data_files`: the files that it lists, and checks for damage.
- `examples`: rows as arrays. `writer`: write them as MindRecord files. `reader`: read them.
- `batches`: rows in batches, in the order of a training or in the written one.
- `expired`: ids whose values have expired, and ids that were renumbered.
- `features`: rows as features of a logistic regression.
- `truth`: the true click probabilities of synthetic logs.

Array shapes are written with these letters: n rows (of a block, where there are blocks), N numeric columns, C
categorical columns, P positions of their ids (C if no field is a list), V ids.
"""
