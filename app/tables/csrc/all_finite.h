// Whether all gradients of an array are finite, and so far from infinity that the squares of their sums are.

#ifndef ALL_FINITE_H_
#define ALL_FINITE_H_

#include "kernels.h"

namespace host_tables::ISA {

bool all_finite(const float* values, std::int64_t count, int num_threads);

}  // namespace host_tables::ISA

#endif  // ALL_FINITE_H_
