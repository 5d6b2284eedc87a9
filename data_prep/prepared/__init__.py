"""The prepared folder, the contract with app: schema, examples, writer, reader, features, truth (of synthetic logs)."""
