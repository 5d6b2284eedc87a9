"""The tower over ranks: check, strategy_file, data_parallel, accelerator (Ascend, GPU), tensor/, pipeline/."""
