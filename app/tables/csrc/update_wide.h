// The wide rows' optimizers: gather, sum per id, step, scatter, in one kernel.

#ifndef UPDATE_WIDE_H_
#define UPDATE_WIDE_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_update_wide; the steps are those of app/tables/optimizers.py. Threads split the unique ids.
void update_wide(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                 const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                 int num_threads);

}  // namespace host_tables::ISA

#endif  // UPDATE_WIDE_H_
