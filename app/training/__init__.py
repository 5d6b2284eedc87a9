"""A training: context (what its parts are given), assemble (the parts), loop, step/, learning_rates, progress, saving,
stopping, parallel/, warm_start/; validate (rules between settings) and launch (from the first check to the status).
"""
