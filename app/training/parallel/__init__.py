"""Train on several ranks: `data_parallel` (each rank computes a slice of the batch), `rank_graphs` (the MindSpore
graphs of such a step) and `server` (owns rows only).
"""
