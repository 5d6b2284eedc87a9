"""The commands: train, rank and server (its processes), evaluate, checkpoint, export_rows."""
