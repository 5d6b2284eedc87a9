// Compiled once for each instruction set: the table of that set's kernels.

#include "all_finite.h"
#include "expand.h"
#include "ftrl.h"
#include "initial_rows.h"
#include "kernels.h"
#include "lazy_adam.h"
#include "lookup.h"
#include "sum_by_id.h"

#define AS_TEXT(name) #name
#define NAME_OF(macro) AS_TEXT(macro)

namespace host_tables::ISA {

extern const Kernels kernels;
const Kernels kernels = {NAME_OF(ISA), initialize, lookup, all_finite, ftrl, lazy_adam, expand, sum_by_id};

}  // namespace host_tables::ISA
