"""One step: step (lookup, graph, update), not_finite, profile; stock_step and stock_tables are MindSpore's way."""
