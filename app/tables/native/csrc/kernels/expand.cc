#include "kernels/kernels.h"

#include <cstring>

#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kRowsPerTask = 64;   // of the batch
constexpr std::int64_t kPrefetchAhead = 8;  // positions

void copy_row(const float* source, std::int64_t width, bool streamed, float* target) {
  if (streamed) {
    stream_row(source, width, target);
  } else {
    std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(float));
  }
}

// The pointers do not overlap; __restrict lets the compiler vectorize.
void add(const float* __restrict row, float weight, std::int64_t width, float* __restrict sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += weight * row[i];
}

}  // namespace

void expand(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep_rows, const float* wide_rows,
            float* deep, float* wide, int num_threads) {
  const std::int64_t num_fields = batch.num_fields, last = batch.num_rows * num_fields - 1;
  const bool streamed = can_stream(deep, embedding_dim);
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(dynamic, kRowsPerTask)
    for (std::int64_t row = 0; row < batch.num_rows; ++row) {
      float sum = 0.0f;
      for (std::int64_t i = row * num_fields; i < (row + 1) * num_fields; ++i) {
        const std::int64_t ahead = i + kPrefetchAhead < last ? i + kPrefetchAhead : last;
        prefetch_row(deep_rows + batch.inverse[ahead] * embedding_dim, embedding_dim);
        copy_row(deep_rows + batch.inverse[i] * embedding_dim, embedding_dim, streamed, deep + i * embedding_dim);
        sum += wide_rows[batch.inverse[i]];
      }
      wide[row] = sum;
    }
    end_stream();
  }
}

void expand_lists(const HostTablesBatch& batch, const HostTablesLists& lists, std::int64_t embedding_dim,
                  const float* deep_rows, const float* wide_rows, float* deep, float* wide, int num_threads) {
  const std::int64_t num_fields = lists.num_fields, last = batch.num_rows - 1;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kRowsPerTask)
  for (std::int64_t row = 0; row < lists.num_rows; ++row) {
    float wide_sum = 0.0f;
    for (std::int64_t field = row * num_fields; field < (row + 1) * num_fields; ++field) {
      float* const sum = deep + field * embedding_dim;
      std::memset(sum, 0, static_cast<std::size_t>(embedding_dim) * sizeof(float));
      for (std::int64_t i = lists.first[field]; i < lists.first[field + 1]; ++i) {
        const std::int64_t ahead = i + kPrefetchAhead < last ? i + kPrefetchAhead : last;
        prefetch_row(deep_rows + batch.inverse[ahead] * embedding_dim, embedding_dim);
        add(deep_rows + batch.inverse[i] * embedding_dim, lists.weights[i], embedding_dim, sum);
        wide_sum += lists.weights[i] * wide_rows[batch.inverse[i]];
      }
    }
    wide[row] = wide_sum;
  }
}

}  // namespace host_tables::ISA
