// The way back from expand: the gradients of a batch summed for each of its unique ids.

#ifndef SUM_BY_ID_H_
#define SUM_BY_ID_H_

#include "kernels.h"

namespace host_tables::ISA {

// See host_tables_sum_by_id. Threads split the unique ids.
void sum_by_id(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep, const float* wide,
               float* deep_sums, float* wide_sums, int num_threads);

}  // namespace host_tables::ISA

#endif  // SUM_BY_ID_H_
