"""The tower over ranks: strategy_file, placement, data_parallel, accelerator (Ascend, GPU), tensor/, pipeline/, and
server (a rank that owns rows alone).
"""
