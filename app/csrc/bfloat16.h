// float32 to bfloat16, rounded to the nearest, ties to even; NaN stays NaN.

#ifndef BFLOAT16_H_
#define BFLOAT16_H_

#include <cstdint>
#include <cstring>

namespace dense {

using BFloat16 = std::uint16_t;

inline BFloat16 to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<BFloat16>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
}

}  // namespace dense

#endif  // BFLOAT16_H_
