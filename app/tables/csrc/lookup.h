// Rows of a batch, in one pass over its positions.

#ifndef LOOKUP_H_
#define LOOKUP_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_lookup. Threads split the batch's rows.
void lookup(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
            const std::int32_t* row_slots, float* deep, float* wide, double* squared_norms, int num_threads);

}  // namespace host_tables::ISA

#endif  // LOOKUP_H_
