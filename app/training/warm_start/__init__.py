"""A run that begins with another's model: source, tables, dense."""
