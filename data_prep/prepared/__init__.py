"""The prepared folder, the contract with app: schema, data_files (their entries in it), examples, writer,
reader, expired (ids without a value), features, truth (of synthetic logs)."""
