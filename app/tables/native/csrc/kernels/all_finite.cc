#include "kernels/kernels.h"

#include "kernels/finite.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kBlock = 1 << 14;  // values per task

}  // namespace

bool all_finite(const float* values, std::int64_t count, int num_threads) {
  bool finite = true;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 4) reduction(&& : finite)
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    finite = finite && values_are_below(values + begin, count - begin < kBlock ? count - begin : kBlock, kLargestGradient);
  }
  return finite;
}

}  // namespace host_tables::ISA
