"""A training: context (of one launch), assemble (the parts), loop, step/, learning_rates, epoch_progress, saving,
stop_signals, parallel/, warm_start/, validate (rules between settings) and start (from the first check to the status).
"""
