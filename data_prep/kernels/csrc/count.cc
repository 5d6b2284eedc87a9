// Counts the distinct values of a chunk with a radix sort, after which equal values are adjacent.

#include <cstdint>
#include <utility>

#include "log_kernels.h"

namespace {

// A value is sorted by three digits of eleven bits each. The counters of a digit (8 KiB) fit in the first-level cache.
constexpr int kDigits = 3;
constexpr int kDigitBits = 11;
constexpr std::uint32_t kDigitMask = (1u << kDigitBits) - 1;

// Sorts values [count] by their digits, beginning with the least significant digit. Returns the array that holds the
// result, which is `values` or `spare`.
std::uint32_t* radix_sort(std::uint32_t* values, std::uint32_t* spare, std::int64_t count) {
  std::int32_t starts[kDigits][1 << kDigitBits] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    for (int digit = 0; digit < kDigits; ++digit) ++starts[digit][values[i] >> digit * kDigitBits & kDigitMask];
  }
  for (int digit = 0; digit < kDigits; ++digit) {
    std::int32_t start = 0;
    for (std::int32_t& digit_start : starts[digit]) start += std::exchange(digit_start, start);
    for (std::int64_t i = 0; i < count; ++i) {
      spare[starts[digit][values[i] >> digit * kDigitBits & kDigitMask]++] = values[i];
    }
    std::swap(values, spare);
  }
  return values;
}

}  // namespace

int64_t log_kernels_count(const uint32_t* values, const uint8_t* present, const uint8_t* chosen, int64_t num_rows,
                          uint32_t* scratch, uint64_t* words) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    scratch[count] = values[row];
    count += chosen[row] & present[row];
  }
  const std::uint32_t* const sorted = radix_sort(scratch, scratch + num_rows, count);
  std::int64_t num_words = 0;
  for (std::int64_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && sorted[end] == sorted[first];) ++end;
    words[num_words++] = std::uint64_t{sorted[first]} << 32 | static_cast<std::uint64_t>(end - first);
  }
  return num_words;
}
