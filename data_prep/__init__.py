"""From the raw click log to a prepared folder of MindRecord files (see docs/internals/DESIGN.md)."""
