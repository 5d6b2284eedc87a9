#include "elementwise.h"

#include <cstring>

namespace dense {
namespace {

inline __attribute__((always_inline)) BFloat16 rounded(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<BFloat16>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : nearest);
}

constexpr std::uint32_t kGolden32 = 0x9E3779B9;

inline __attribute__((always_inline)) std::uint32_t mix32(std::uint32_t value) {
  value = (value ^ (value >> 16)) * 0x7FEB352Du;
  value = (value ^ (value >> 15)) * 0x846CA68Bu;
  return value ^ (value >> 16);
}

}  // namespace

ANY_MACHINE void round_values(const float* from, std::int64_t size, BFloat16* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = rounded(from[i]);
}

ANY_MACHINE void set_multiple(float factor, const float* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = factor * from[i];
}

ANY_MACHINE void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, BFloat16* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = rounded(y[i] > 0.0f ? dy[i] * scale : 0.0f);
}

ANY_MACHINE void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = y[i] > 0.0f ? dy[i] * scale : 0.0f;
}

ANY_MACHINE void unit_hashes(std::int64_t size, std::uint32_t* hashes) {
  for (std::int64_t i = 0; i < size; ++i) hashes[i] = mix32(static_cast<std::uint32_t>(i + 1) * kGolden32);
}

ANY_MACHINE void drop_units(float* y, std::int64_t rows, std::int64_t columns, const Dropout& dropout,
                            std::int64_t first_row, const std::uint32_t* hashes) {
  const float scale = dropout.scale();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint32_t number = dropout.first_row + static_cast<std::uint32_t>(first_row + row);
    const std::uint32_t row_hash = mix32(dropout.key + number * kGolden32);
    float* const values = y + row * columns;
    for (std::int64_t i = 0; i < columns; ++i) {
      const bool stays = mix32(row_hash ^ hashes[i]) >> 8 >= dropout.threshold;
      values[i] = stays ? values[i] * scale : 0.0f;
    }
  }
}

ANY_MACHINE bool all_below(const float* values, std::int64_t size, float limit) {
  std::uint32_t limit_bits, above = 0;
  std::memcpy(&limit_bits, &limit, sizeof limit_bits);
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    above |= (bits & 0x7FFFFFFFu) >= limit_bits;  // Without sign, the bits of floats are ordered as the floats are.
  }
  return above == 0;
}

}  // namespace dense
