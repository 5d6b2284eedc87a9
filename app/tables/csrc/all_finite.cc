#include "all_finite.h"

#include <cstring>

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kBlock = 1 << 14;  // values of a task
constexpr std::int32_t kExponent = 0x7F800000;

bool block_is_finite(const float* values, std::int64_t count) {
  std::int32_t num_bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    num_bad += (bits & kExponent) == kExponent;
  }
  return num_bad == 0;
}

}  // namespace

bool all_finite(const float* values, std::int64_t count, int num_threads) {
  bool finite = true;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 4) reduction(&& : finite)
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    finite = finite && block_is_finite(values + begin, count - begin < kBlock ? count - begin : kBlock);
  }
  return finite;
}

}  // namespace host_tables::ISA
