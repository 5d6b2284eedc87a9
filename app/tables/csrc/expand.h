// Rows of a batch from the rows of its unique ids, wherever those came from.

#ifndef EXPAND_H_
#define EXPAND_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_expand. Threads split the batch's rows.
void expand(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep_rows, const float* wide_rows,
            float* deep, float* wide, int num_threads);

}  // namespace host_tables::ISA

#endif  // EXPAND_H_
