"""Two stages of the tower: stage_plan, stages, stage_step.

Letters: n rows of a micro-batch, C fields, N numeric fields, D embedding width, H units of the message's hidden layer.
"""
