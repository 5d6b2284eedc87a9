"""A training step: step (lookup, graph, update), distinct (rows cross to the device once), first_layer (when),
precision, kernel_times; stock_step and stock_tables use MindSpore's operators.
"""
