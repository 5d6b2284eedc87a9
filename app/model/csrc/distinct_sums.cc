#include "distinct_sums.h"

#include <algorithm>
#include <cstring>

namespace dense {
namespace {

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

constexpr std::int64_t kLaneFloats = 16;
constexpr int kLanes = 8;                   // lanes processed together, so that sums stay in registers
constexpr std::int64_t kPrefetchAhead = 6;  // rows to prefetch ahead
constexpr std::int64_t kLineBytes = 64;

// A vector of columns. Operations on it are one, two or four instructions, depending on the machine.
typedef float Lane __attribute__((vector_size(kLaneFloats * sizeof(float))));
typedef std::uint32_t Bits __attribute__((vector_size(kLaneFloats * sizeof(float))));
typedef std::uint16_t HalfBits __attribute__((vector_size(kLaneFloats * sizeof(BFloat16))));

INLINE void load(const float* from, Lane& to) { std::memcpy(&to, from, sizeof to); }
INLINE void load(const float* from, float& to) { to = *from; }

INLINE void load(const BFloat16* from, Lane& to) {
  HalfBits halves;
  std::memcpy(&halves, from, sizeof halves);
  const Bits bits = __builtin_convertvector(halves, Bits) << 16;
  std::memcpy(&to, &bits, sizeof to);
}

INLINE void load(const BFloat16* from, float& to) {
  const std::uint32_t bits = static_cast<std::uint32_t>(*from) << 16;
  std::memcpy(&to, &bits, sizeof to);
}

template <typename V>
INLINE void store(const V& value, float* to) {
  std::memcpy(to, &value, sizeof value);
}

INLINE void relu(float& value) { value = value > 0.0f ? value : value != value ? value : 0.0f; }
INLINE void relu(Lane& value) {
  const Lane zero = {};
  value = value < zero ? zero : value;  // NaN stays NaN
}

template <typename T>
INLINE void prefetch(const T* row, std::int64_t values) {
  const char* const bytes = reinterpret_cast<const char*>(row);
  const std::int64_t size = values * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t byte = 0; byte < size; byte += kLineBytes) __builtin_prefetch(bytes + byte);
}

std::int64_t* room_for_starts(const Places& places) {
  thread_local std::vector<std::int64_t> starts;
  starts.resize(std::max<std::size_t>(1, 2 * places.fields.size()));
  return starts.data();
}

// Write the offsets at which the distinct rows of batch row b start, one for each field, and behind them those of the
// next batch row, which are prefetched. `last` is the last batch row, and `stride` the number of values of a row.
INLINE void find_rows(const Places& places, std::int64_t b, std::int64_t last, std::int64_t stride,
                      std::int64_t* starts) {
  const std::int64_t count = static_cast<std::int64_t>(places.fields.size());
  for (std::int64_t row = b; row <= b + 1; ++row, starts += count) {
    const std::int32_t* const index = places.index + std::min(row, last) * places.num_fields;
    for (std::int64_t i = 0; i < count; ++i) starts[i] = (index[places.fields[i]] + places.shifts[i]) * stride;
  }
}

// A block of kCount values of type V.
template <int kCount, typename V>
struct Block {};

// Call take(Block, c) for blocks that together cover all columns; each block starts at column c.
template <typename Take>
INLINE void for_blocks(std::int64_t columns, const Take& take) {
  std::int64_t c = 0;
  for (; c + kLanes * kLaneFloats <= columns; c += kLanes * kLaneFloats) take(Block<kLanes, Lane>{}, c);
  for (; c + 4 * kLaneFloats <= columns; c += 4 * kLaneFloats) take(Block<4, Lane>{}, c);
  for (; c + kLaneFloats <= columns; c += kLaneFloats) take(Block<1, Lane>{}, c);
  for (; c < columns; ++c) take(Block<1, float>{}, c);
}

template <int kCount, typename V, typename T>
INLINE void gather_block(Block<kCount, V>, const T* products, const std::int64_t* starts, std::int64_t count,
                         float* y) {
  constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
  V sums[kCount];
#pragma GCC unroll 8
  for (int k = 0; k < kCount; ++k) load(y + k * kWidth, sums[k]);
  for (std::int64_t i = 0; i < count; ++i) {
    const T* const row = products + starts[i];
    prefetch(products + starts[std::min(i + kPrefetchAhead, 2 * count - 1)], kCount * kWidth);
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      V value;
      load(row + k * kWidth, value);
      sums[k] += value;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kCount; ++k) {
    relu(sums[k]);
    store(sums[k], y + k * kWidth);
  }
}

template <typename T>
INLINE void gather_all(const Columns<const T>& products, const Places& places, std::int64_t first, std::int64_t rows,
                       std::int64_t columns, const Columns<float>& y) {
  const std::int64_t count = static_cast<std::int64_t>(places.fields.size());
  std::int64_t* const starts = room_for_starts(places);
  for (std::int64_t b = first; b < first + rows; ++b) {
    find_rows(places, b, first + rows - 1, products.stride, starts);
    float* const to = y.data + b * y.stride;
    for_blocks(columns, [&](auto block, std::int64_t c) INLINE_LAMBDA {
      gather_block(block, products.data + c, starts, count, to + c);
    });
  }
}

template <int kCount, typename V, typename T>
INLINE void scatter_block(Block<kCount, V>, const T* dz, const std::int64_t* starts, std::int64_t count, float* sums) {
  constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
  V values[kCount];
#pragma GCC unroll 8
  for (int k = 0; k < kCount; ++k) load(dz + k * kWidth, values[k]);
  for (std::int64_t i = 0; i < count; ++i) {
    float* const row = sums + starts[i];
    prefetch(sums + starts[std::min(i + kPrefetchAhead, 2 * count - 1)], kCount * kWidth);
#pragma GCC unroll 8
    for (int k = 0; k < kCount; ++k) {
      V sum;
      load(row + k * kWidth, sum);
      store(V(sum + values[k]), row + k * kWidth);
    }
  }
}

template <typename T>
INLINE void scatter_all(const Columns<const T>& dz, const Places& places, std::int64_t rows, std::int64_t columns,
                        const Columns<float>& sums) {
  const std::int64_t count = static_cast<std::int64_t>(places.fields.size());
  std::int64_t* const starts = room_for_starts(places);
  for (std::int64_t b = 0; b < rows; ++b) {
    find_rows(places, b, rows - 1, sums.stride, starts);
    const T* const from = dz.data + b * dz.stride;
    prefetch(dz.data + std::min(b + 2, rows - 1) * dz.stride, columns);
    for_blocks(columns, [&](auto block, std::int64_t c) INLINE_LAMBDA {
      scatter_block(block, from + c, starts, count, sums.data + c);
    });
  }
}

}  // namespace

ANY_MACHINE void gather_sum(const Columns<const float>& products, const Places& places, std::int64_t first,
                            std::int64_t rows, std::int64_t columns, const Columns<float>& y) {
  gather_all(products, places, first, rows, columns, y);
}

ANY_MACHINE void gather_sum(const Columns<const BFloat16>& products, const Places& places, std::int64_t first,
                            std::int64_t rows, std::int64_t columns, const Columns<float>& y) {
  gather_all(products, places, first, rows, columns, y);
}

ANY_MACHINE void scatter_sum(const Columns<const float>& dz, const Places& places, std::int64_t rows,
                             std::int64_t columns, const Columns<float>& sums) {
  scatter_all(dz, places, rows, columns, sums);
}

ANY_MACHINE void scatter_sum(const Columns<const BFloat16>& dz, const Places& places, std::int64_t rows,
                             std::int64_t columns, const Columns<float>& sums) {
  scatter_all(dz, places, rows, columns, sums);
}

}  // namespace dense
