// Sum over the positions of a batch, always in the same order: the rows of a list's values, and the gradients of an
// id.

#ifndef POSITIONS_H_
#define POSITIONS_H_

#include <cstdint>
#include <cstring>

#include "host_tables.h"
#include "kernels/stream.h"
#include "storage/slots.h"

namespace host_tables {

constexpr std::int64_t kPositionsAhead = 16;
constexpr std::int64_t kPositionsFarAhead = 64;

// Return the number b * C + f of the batch row b and field f to which a position belongs.
static inline std::int64_t place_of(const HostTablesBatch& batch, std::int64_t position) {
  return batch.places == nullptr ? position : batch.places[position];
}

static inline float weight_of(const HostTablesBatch& batch, std::int64_t position) {
  return batch.weights == nullptr ? 1.0f : batch.weights[position];
}

static inline std::int64_t positions_ahead(const HostTablesBatch& batch, std::int64_t i,
                                           std::int64_t ahead = kPositionsAhead) {
  return i + ahead < batch.num_positions ? i + ahead : batch.num_positions - 1;
}

// Add weight * values to sum. The arrays must not overlap; __restrict lets the compiler vectorize.
static inline void add_weighted(const float* __restrict values, float weight, std::int64_t width,
                                float* __restrict sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += weight * values[i];
}

// Stands for a row width that is not known at compile time. Rows of up to one cache line have their width as a
// template argument, which turns loops into single instructions.
constexpr std::int64_t kAnyWidth = 0;

// Sum the gradients of all positions of distinct id u, in the order of positions, for rows of kWidth columns.
template <std::int64_t kWidth>
static inline void sum_narrow_positions(const HostTablesBatch& batch, std::int64_t u, const float* gradient, float* sum) {
  typedef float Row __attribute__((vector_size(kWidth * sizeof(float))));
  Row total = {};
  for (std::int64_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
    const std::int64_t ahead = batch.positions[positions_ahead(batch, i)], position = batch.positions[i];
    __builtin_prefetch(gradient + place_of(batch, ahead) * kWidth);
    Row row;
    std::memcpy(&row, gradient + place_of(batch, position) * kWidth, sizeof row);
    total += weight_of(batch, position) * row;
  }
  std::memcpy(sum, &total, sizeof total);
}

// Sum columns begin ... begin + width - 1 of the gradients of all positions of distinct id u, in the order of
// positions.
static inline void sum_positions(const HostTablesBatch& batch, std::int64_t u, const float* gradient,
                                 std::int64_t embedding_dim, std::int64_t begin, std::int64_t width, float* sum) {
  std::memset(sum, 0, static_cast<std::size_t>(width) * sizeof(float));
  for (std::int64_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
    const std::int64_t ahead = batch.positions[positions_ahead(batch, i)], position = batch.positions[i];
    prefetch_row(gradient + place_of(batch, ahead) * embedding_dim + begin, width);
    add_weighted(gradient + place_of(batch, position) * embedding_dim + begin, weight_of(batch, position), width, sum);
  }
}

static inline float sum_wide_positions(const HostTablesBatch& batch, std::int64_t u, const float* gradient) {
  const std::uint32_t num_fields = static_cast<std::uint32_t>(batch.num_fields);
  float sum = 0.0f;
  for (std::int64_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
    const std::int64_t position = batch.positions[i];
    sum += weight_of(batch, position) * gradient[static_cast<std::uint32_t>(place_of(batch, position)) / num_fields];
  }
  return sum;
}

// Return the weighted sum of the wide rows of one batch row.
static inline float sum_wide_rows(const HostTablesBatch& batch, std::int64_t row, const float* wide_rows) {
  std::int64_t begin = row * batch.num_fields, end = begin + batch.num_fields;
  if (batch.first != nullptr) begin = batch.first[begin], end = batch.first[end];
  float sum = 0.0f;
  for (std::int64_t i = begin; i < end; ++i) sum += weight_of(batch, i) * wide_rows[batch.inverse[i]];
  return sum;
}

// One register of columns. Eight of them hold all columns that are summed together, and leave two of AVX-512's
// registers free for row and weight.
typedef float Lane __attribute__((vector_size(kLineFloats * sizeof(float))));
constexpr int kMostLanes = 8;

// Pool kLanes * 16 columns of a list field. `row_of` returns the columns of a position's row.
template <int kLanes, typename RowOf>
static inline void pool_lanes(const HostTablesBatch& batch, std::int64_t place, const RowOf& row_of, float* pooled) {
  Lane sums[kLanes] = {};
  for (std::int64_t i = batch.first[place]; i < batch.first[place + 1]; ++i) {
    const float* const far = row_of(positions_ahead(batch, i, kPositionsFarAhead));
    prefetch_values(reinterpret_cast<const char*>(far), kLanes * kLineBytes);
    prefetch_row(row_of(positions_ahead(batch, i)), kLanes * kLineFloats);
    const float* const row = row_of(i);
    const float weight = batch.weights[i];
#pragma GCC unroll 8
    for (int k = 0; k < kLanes; ++k) {
      Lane value;
      std::memcpy(&value, row + k * kLineFloats, sizeof value);
      sums[k] += weight * value;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kLanes; ++k) std::memcpy(pooled + k * kLineFloats, &sums[k], sizeof sums[k]);
}

// Pool the rows of a field's positions into the field's row, each multiplied by its weight, in the order of
// positions. `place` is the field's number (0 ... B * C - 1).
template <typename RowOf>
static inline void pool_row(const HostTablesBatch& batch, std::int64_t place, std::int64_t width, const RowOf& row_of,
                            float* pooled) {
  std::int64_t begin = 0;
  const auto from_begin = [&](std::int64_t position) { return row_of(position) + begin; };
  for (std::int64_t lanes; (lanes = (width - begin) / kLineFloats) > 0;) {
    if (lanes >= kMostLanes) {
      pool_lanes<kMostLanes>(batch, place, from_begin, pooled + begin);
      begin += kMostLanes * kLineFloats;
    } else if (lanes >= 5) {
      pool_lanes<5>(batch, place, from_begin, pooled + begin);
      begin += 5 * kLineFloats;
    } else if (lanes >= 2) {
      pool_lanes<2>(batch, place, from_begin, pooled + begin);
      begin += 2 * kLineFloats;
    } else {
      pool_lanes<1>(batch, place, from_begin, pooled + begin);
      begin += kLineFloats;
    }
  }
  std::memset(pooled + begin, 0, static_cast<std::size_t>(width - begin) * sizeof(float));
  for (std::int64_t i = batch.first[place]; begin < width && i < batch.first[place + 1]; ++i) {
    add_weighted(from_begin(i), batch.weights[i], width - begin, pooled + begin);
  }
}

}  // namespace host_tables

#endif  // POSITIONS_H_
