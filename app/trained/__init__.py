"""A trained model out of its run: trained_model (a checkpoint with its settings and data), load (its model, to score),
evaluate_split, follow (the checkpoints of a run as they are written), export_bundle with its card (README.md).
"""
