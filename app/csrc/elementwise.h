// Elementwise passes, on blocks that are near the core anyway. bfloat16 is rounded to the nearest, ties to even; NaN
// stays NaN.

#ifndef ELEMENTWISE_H_
#define ELEMENTWISE_H_

#include <cstdint>

namespace dense {

using BFloat16 = std::uint16_t;

// to[i] = from[i]
void round_values(const float* from, std::int64_t size, BFloat16* to);

// to[i] = dy[i] where y[i] > 0, else 0: the gradient through a ReLU whose output was y.
void relu_gradient(const float* dy, const float* y, std::int64_t size, BFloat16* to);
void relu_gradient(const float* dy, const float* y, std::int64_t size, float* to);

}  // namespace dense

#endif  // ELEMENTWISE_H_
