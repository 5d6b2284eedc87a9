#include "elementwise.h"

#include <cstring>

// One build for any x86-64: the loader chooses the version for the machine. The bits are the same in all of them.
#if defined(__x86_64__)
#define ANY_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ANY_MACHINE
#endif

namespace dense {
namespace {

inline __attribute__((always_inline)) BFloat16 rounded(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<BFloat16>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : nearest);
}

}  // namespace

ANY_MACHINE void round_values(const float* from, std::int64_t size, BFloat16* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = rounded(from[i]);
}

ANY_MACHINE void relu_gradient(const float* dy, const float* y, std::int64_t size, BFloat16* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = rounded(y[i] > 0.0f ? dy[i] : 0.0f);
}

ANY_MACHINE void relu_gradient(const float* dy, const float* y, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

}  // namespace dense
