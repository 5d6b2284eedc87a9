// Compiled once for each instruction set: the table of that set's kernels.

#include "all_finite.h"
#include "ftrl.h"
#include "initial_rows.h"
#include "kernels.h"
#include "lazy_adam.h"
#include "lookup.h"

#define AS_TEXT(name) #name
#define NAME_OF(macro) AS_TEXT(macro)

namespace host_tables::ISA {

extern const Kernels kernels;
const Kernels kernels = {NAME_OF(ISA), initialize, lookup, all_finite, ftrl, lazy_adam};

}  // namespace host_tables::ISA
