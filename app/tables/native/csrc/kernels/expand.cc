#include "kernels/kernels.h"

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

}  // namespace host_tables::ISA
