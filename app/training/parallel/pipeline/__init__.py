"""Two stages of the tower: stage_plan, stages, stage_step."""
