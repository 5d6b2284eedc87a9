// FTRL on the wide rows: gather, sum per id, step, scatter, in one kernel.

#ifndef FTRL_H_
#define FTRL_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_ftrl; the step is ftrl_step of app/tables/optimizers.py. Threads split the unique ids.
void ftrl(const Slots& slots, const HostTablesBatch& batch, const std::int32_t* row_slots, const float* gradient,
          float scale, const HostTablesFtrl& options, int num_threads);

}  // namespace host_tables::ISA

#endif  // FTRL_H_
