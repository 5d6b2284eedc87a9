"""A layer's product split: strategy, layout, layout_plan, collectives, split_tower, optimizer_shards, split_step.

Letters: B batch of all ranks, n rows of one rank's slice, C fields, N numeric fields, D embedding width. A layer has K
inputs and H units.
"""
