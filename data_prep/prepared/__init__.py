"""The prepared folder, the contract with app: schema, rows, writer, reader, truth (of synthetic logs)."""
