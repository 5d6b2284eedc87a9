#include "kernels/kernels.h"

#include "kernels/positions.h"

namespace host_tables::ISA {

void sum_by_id(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep, const float* wide,
               float* deep_sums, float* wide_sums, int num_threads) {
  constexpr std::int64_t kIdsPerTask = 64;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kIdsPerTask)
  for (std::int64_t u = 0; u < batch.num_unique; ++u) {
    if (deep != nullptr) sum_positions(batch, u, deep, embedding_dim, 0, embedding_dim, deep_sums + u * embedding_dim);
    if (wide != nullptr) wide_sums[u] = sum_wide_positions(batch, u, wide);
  }
}

}  // namespace host_tables::ISA
