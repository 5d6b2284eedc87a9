// Elementwise passes, on blocks that are near the core anyway. bfloat16 is rounded to the nearest, ties to even; NaN
// stays NaN.

#ifndef ELEMENTWISE_H_
#define ELEMENTWISE_H_

#include <cstdint>

// One build for any x86-64: the loader chooses the version for the machine. The bits are the same in all of them.
// Compilers that do not know the levels by name (GCC before 12) build the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define ANY_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ANY_MACHINE
#endif

namespace dense {

using BFloat16 = std::uint16_t;

// to[i] = from[i]
void round_values(const float* from, std::int64_t size, BFloat16* to);

// to[i] = factor * from[i]
void set_multiple(float factor, const float* from, std::int64_t size, float* to);

// to[i] = dy[i] * scale where y[i] > 0, else 0: the gradient through a ReLU whose output, times `scale` where it was
// not dropped, was y.
void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, BFloat16* to);
void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, float* to);

// Whether every |value| < limit; no NaN is.
bool all_below(const float* values, std::int64_t size, float limit);

// One layer's dropout: `keep_mask` of app/model/dropout.py.
struct Dropout {
  std::uint32_t key, first_row, threshold;

  // The factor of units that stay: exact but for one division.
  float scale() const { return 1.0f / (1.0f - static_cast<float>(threshold) * 0x1p-24f); }
};

// The part of a unit's random number that all rows share, of units 0 ... size - 1.
void unit_hashes(std::int64_t size, std::uint32_t* hashes);

// Drops units of y [rows, columns], whose first row has number `first_row` in the batch, and scales the others.
void drop_units(float* y, std::int64_t rows, std::int64_t columns, const Dropout& dropout, std::int64_t first_row,
                const std::uint32_t* hashes);

}  // namespace dense

#endif  // ELEMENTWISE_H_
