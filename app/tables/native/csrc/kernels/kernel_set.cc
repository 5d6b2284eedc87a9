// List the kernels of one instruction set. This file is compiled once for each set.

#include "kernels/kernels.h"

#define AS_TEXT(name) #name
#define NAME_OF(macro) AS_TEXT(macro)

namespace host_tables::ISA {

extern const Kernels kernels = {NAME_OF(ISA), initialize, write_rows, lookup,        all_finite, update_wide,
                                update_deep,  expand,     sum_by_id,  advance_means, read_means, catch_up_arrays};

}  // namespace host_tables::ISA
