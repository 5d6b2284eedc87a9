"""A training: assemble (its parts), loop, step/, learning_rates, progress, saving, stopping, parallel/,
warm_start/.
"""
