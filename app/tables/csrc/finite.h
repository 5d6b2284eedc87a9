// Whether values are finite, by their exponents: branches at none of them, so that it vectorizes.

#ifndef FINITE_H_
#define FINITE_H_

#include <cstdint>
#include <cstring>

namespace host_tables {

static inline bool values_are_finite(const float* values, std::int64_t count) {
  constexpr std::int32_t kExponent = 0x7F800000;
  std::int32_t num_bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    num_bad += (bits & kExponent) == kExponent;
  }
  return num_bad == 0;
}

}  // namespace host_tables

#endif  // FINITE_H_
