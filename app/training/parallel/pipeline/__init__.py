"""Two stages of the tower: plan, stages, run."""
