"""One step: step (lookup, graph, update), profile; stock_step and stock_tables are MindSpore's way."""
