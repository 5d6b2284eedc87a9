"""A layer's product split: strategy, layout, plan, collectives, tower, optimizer_shards, run."""
