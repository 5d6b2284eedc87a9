// Elementwise operations on blocks that are in a core's cache. Rounding to bfloat16 is to nearest, ties to even. NaN
// stays NaN.

#ifndef ELEMENTWISE_H_
#define ELEMENTWISE_H_

#include <cstdint>

// Compile a function once for each level of x86-64; the loader chooses the version for the machine. All versions
// give the same bits. Compilers that do not know the levels by name (GCC before 12) build the plain version only.
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

// to[i] = dy[i] * scale where y[i] > 0, else 0. This is the gradient through a ReLU with the output y, where `scale`
// is the factor of units that dropout keeps.
void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, BFloat16* to);
void relu_gradient(const float* dy, const float* y, std::int64_t size, float scale, float* to);

// Return true if the absolute values of all `values` are below `limit`, and false if one is not or is NaN.
bool all_below(const float* values, std::int64_t size, float limit);

// The dropout of one layer; see `keep_mask` in app/model/dense_state.py.
struct Dropout {
  std::uint32_t key, first_row, threshold;

  // Return the factor of units that stay. Only the division rounds.
  float scale() const { return 1.0f / (1.0f - static_cast<float>(threshold) * 0x1p-24f); }
};

// Compute the part of a unit's random number that is the same for all rows, for units 0 ... size - 1.
void unit_hashes(std::int64_t size, std::uint32_t* hashes);

// Set dropped units of y [rows, columns] to 0 and scale the others. The first row has the number `first_row` in the
// batch.
void drop_units(float* y, std::int64_t rows, std::int64_t columns, const Dropout& dropout, std::int64_t first_row,
                const std::uint32_t* hashes);

}  // namespace dense

#endif  // ELEMENTWISE_H_
