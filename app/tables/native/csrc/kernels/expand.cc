#include "kernels/kernels.h"

#include <cstring>

#include "kernels/positions.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kRowsPerTask = 64;  // batch rows per task

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
  const std::int64_t num_fields = batch.num_fields;
  const bool streamed = can_stream(deep, embedding_dim * static_cast<std::int64_t>(sizeof(float)));
  const auto row_of = [&](std::int64_t position) { return deep_rows + batch.inverse[position] * embedding_dim; };
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(dynamic, kRowsPerTask)
    for (std::int64_t row = 0; row < batch.num_rows; ++row) {
      for (std::int64_t field = row * num_fields; field < (row + 1) * num_fields; ++field) {
        if (batch.first != nullptr) {
          pool_row(batch, field, embedding_dim, row_of, deep + field * embedding_dim);
        } else {
          prefetch_row(row_of(positions_ahead(batch, field)), embedding_dim);
          copy_row(row_of(field), embedding_dim, streamed, deep + field * embedding_dim);
        }
      }
      wide[row] = sum_wide_rows(batch, row, wide_rows);
    }
    end_stream();
  }
}

}  // namespace host_tables::ISA
