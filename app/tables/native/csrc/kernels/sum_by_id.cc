#include "kernels/kernels.h"

#include <cstring>

#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kIdsPerTask = 64;
constexpr std::int64_t kPrefetchAhead = 8;  // positions

// The pointers do not overlap; __restrict lets the compiler vectorize.
void add(const float* __restrict gradient, std::int64_t width, float* __restrict sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += gradient[i];
}

// The same, each value times `weight`.
void add_weighted(const float* __restrict gradient, float weight, std::int64_t width, float* __restrict sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += weight * gradient[i];
}

}  // namespace

void sum_by_id(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep, const float* wide,
               float* deep_sums, float* wide_sums, int num_threads) {
  const std::int64_t last = batch.num_rows * batch.num_fields - 1;
  const std::uint32_t num_fields = static_cast<std::uint32_t>(batch.num_fields);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kIdsPerTask)
  for (std::int64_t u = 0; u < batch.num_unique; ++u) {
    float* const sum = deep_sums + u * embedding_dim;
    std::memset(sum, 0, static_cast<std::size_t>(embedding_dim) * sizeof(float));
    float wide_sum = 0.0f;
    for (std::int64_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
      const std::int64_t ahead = i + kPrefetchAhead < last ? i + kPrefetchAhead : last;
      prefetch_row(deep + batch.positions[ahead] * embedding_dim, embedding_dim);
      add(deep + batch.positions[i] * embedding_dim, embedding_dim, sum);
      wide_sum += wide[static_cast<std::uint32_t>(batch.positions[i]) / num_fields];
    }
    wide_sums[u] = wide_sum;
  }
}

void sum_lists_by_id(const HostTablesBatch& batch, const HostTablesLists& lists, std::int64_t embedding_dim,
                     const float* deep, const float* wide, float* deep_sums, float* wide_sums, int num_threads) {
  const std::int64_t last = batch.num_rows - 1;
  const std::uint32_t num_fields = static_cast<std::uint32_t>(lists.num_fields);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kIdsPerTask)
  for (std::int64_t u = 0; u < batch.num_unique; ++u) {
    float* const sum = deep_sums + u * embedding_dim;
    std::memset(sum, 0, static_cast<std::size_t>(embedding_dim) * sizeof(float));
    float wide_sum = 0.0f;
    for (std::int64_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
      const std::int64_t ahead = i + kPrefetchAhead < last ? i + kPrefetchAhead : last;
      prefetch_row(deep + lists.places[batch.positions[ahead]] * embedding_dim, embedding_dim);
      const std::int32_t position = batch.positions[i], place = lists.places[position];
      add_weighted(deep + place * embedding_dim, lists.weights[position], embedding_dim, sum);
      wide_sum += lists.weights[position] * wide[static_cast<std::uint32_t>(place) / num_fields];
    }
    wide_sums[u] = wide_sum;
  }
}

}  // namespace host_tables::ISA
