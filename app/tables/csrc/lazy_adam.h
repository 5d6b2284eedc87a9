// LazyAdam on the deep rows: one pass over the gradients, L2 fused in.

#ifndef LAZY_ADAM_H_
#define LAZY_ADAM_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_lazy_adam; the step is lazy_adam_step of app/tables/optimizers.py. Threads split the unique
// ids by their number of positions, and the columns of ids too frequent for one thread.
void lazy_adam(const Slots& slots, const HostTablesBatch& batch, const std::int32_t* row_slots,
               const float* gradient, float scale, const HostTablesLazyAdam& options, int num_threads);

}  // namespace host_tables::ISA

#endif  // LAZY_ADAM_H_
