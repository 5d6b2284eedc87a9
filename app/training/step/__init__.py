"""A training step: step (lookup, graph, update), profile; stock_step and stock_tables use MindSpore's operators."""
