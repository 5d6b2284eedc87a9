"""A layer's product split: strategy, layout, layout_plan, collectives, split_tower, optimizer_shards, split_step."""
