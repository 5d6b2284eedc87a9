// The deep rows' optimizers: one pass over the gradients, L2 fused in.

#ifndef UPDATE_DEEP_H_
#define UPDATE_DEEP_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_update_deep; the steps are those of app/tables/optimizers.py and whole_table_adam.py. Threads split
// the unique ids by their number of positions, and the columns of ids too frequent for one thread.
void update_deep(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                 const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                 const HostTablesHistory* history, int num_threads);

}  // namespace host_tables::ISA

#endif  // UPDATE_DEEP_H_
