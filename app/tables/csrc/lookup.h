// Rows of a batch, id by id: each row is read once and written to all of its positions.

#ifndef LOOKUP_H_
#define LOOKUP_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_lookup. Threads split the positions.
void lookup(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
            const std::int32_t* row_slots, const HostTablesHistory* history, float* deep, float* wide,
            float* wide_rows, double* squared_norms, int num_threads);

}  // namespace host_tables::ISA

#endif  // LOOKUP_H_
