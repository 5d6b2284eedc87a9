"""The tower over ranks: strategy_file, data_parallel, accelerator (Ascend, GPU), tensor/, pipeline/."""
