"""The prepared folder, the contract with app: schema, rows, writer, reader, features, truth (of synthetic logs)."""
