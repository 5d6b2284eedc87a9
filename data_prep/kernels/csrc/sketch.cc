// Reads and updates a count-min sketch. A key has one cell (counter) in each row of cells, and its estimated count is
// the smallest of these cells.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "log_kernels.h"

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr std::int64_t kMaxDepth = 16;
// The cells of a key are prefetched into the cache this many keys before they are used, because the sketch does not fit
// in the caches and a key's cells lie anywhere in it.
constexpr std::int64_t kAhead = 16;

// Mixes the bits of a value, as hashing.mix64 does.
inline std::uint64_t mix64(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

// Finds the cell (counter) of a key in each row of cells, as offsets from the start of one half of the sketch.
// numpy_kernels._sketch_cells does the same.
inline void find_cells(std::uint64_t key, std::int64_t depth, std::int64_t width, std::int64_t* cells) {
  for (std::int64_t row = 0; row < depth; ++row) {
    const std::uint64_t upper = mix64(key + static_cast<std::uint64_t>(row) * kGolden) >> 32;
    cells[row] = row * width + static_cast<std::int64_t>(upper * static_cast<std::uint64_t>(width) >> 32);
  }
}

// Calls visit(i, cells) for each key i in order. The cells of a key in `half` are prefetched into the cache some keys
// earlier.
template <typename Visit>
void for_each_key(const std::uint32_t* half, std::int64_t depth, std::int64_t width, const std::uint64_t* keys,
                  std::int64_t num_keys, Visit visit) {
  std::int64_t cells[kAhead][kMaxDepth];
  for (std::int64_t i = 0; i < num_keys + kAhead; ++i) {
    std::int64_t* const of_key = cells[i % kAhead];
    if (i >= kAhead) visit(i - kAhead, of_key);
    if (i >= num_keys) continue;
    find_cells(keys[i], depth, width, of_key);
    for (std::int64_t row = 0; row < depth; ++row) __builtin_prefetch(half + of_key[row], 1);
  }
}

std::uint32_t least(const std::uint32_t* half, std::int64_t depth, const std::int64_t* cells) {
  std::uint32_t count = half[cells[0]];
  for (std::int64_t row = 1; row < depth; ++row) count = std::min(count, half[cells[row]]);
  return count;
}

}  // namespace

void log_kernels_sketch_counts(const uint32_t* halves, int64_t num_halves, int64_t depth, int64_t width,
                               const uint64_t* keys, int64_t num_keys, int64_t* counts) {
  std::fill(counts, counts + num_keys, 0);
  for (std::int64_t number = 0; number < num_halves; ++number) {
    const std::uint32_t* const half = halves + number * depth * width;
    for_each_key(half, depth, width, keys, num_keys,
                 [=](std::int64_t i, const std::int64_t* cells) { counts[i] += least(half, depth, cells); });
  }
}

void log_kernels_sketch_add(uint32_t* half, int64_t depth, int64_t width, const uint64_t* keys, const int64_t* counts,
                            int64_t num_keys, uint32_t* sums) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  for_each_key(half, depth, width, keys, num_keys, [=](std::int64_t i, const std::int64_t* cells) {
    sums[i] = static_cast<std::uint32_t>(std::min(counts[i] + least(half, depth, cells), kMost));
  });
  for_each_key(half, depth, width, keys, num_keys, [=](std::int64_t i, const std::int64_t* cells) {
    for (std::int64_t row = 0; row < depth; ++row) half[cells[row]] = std::max(half[cells[row]], sums[i]);
  });
}
