// Test values by their exponents, without branches, so that the loops vectorize.

#ifndef FINITE_H_
#define FINITE_H_

#include <cstdint>
#include <cstring>

namespace host_tables {

constexpr std::int32_t kExponent = 0x7F800000;
constexpr std::int32_t kLargestGradient = (127 + 60) << 23;  // 2^60, LARGEST_GRADIENT in app/tables/checks.py

// Return true if the absolute values of all `values` are below the power of 2 whose exponent bits are `limit`.
static inline bool values_are_below(const float* values, std::int64_t count, std::int32_t limit) {
  std::int32_t num_bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    num_bad += (bits & kExponent) >= limit;
  }
  return num_bad == 0;
}

static inline bool values_are_finite(const float* values, std::int64_t count) {
  return values_are_below(values, count, kExponent);
}

// Return true if all bfloat16 values are finite.
static inline bool values_are_finite(const std::uint16_t* values, std::int64_t count) {
  std::int16_t largest = 0;  // largest value so far, without sign
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int16_t value = static_cast<std::int16_t>(values[i] & 0x7FFF);
    largest = value > largest ? value : largest;
  }
  return largest < kExponent >> 16;
}

}  // namespace host_tables

#endif  // FINITE_H_
