// Makes a histogram of a chunk's integers with logarithmic bins.

#include <cstdint>
#include <cstring>

#include "log_kernels.h"

namespace {

constexpr int kDroppedBits = 49;
constexpr std::int64_t kExponentOfOne = 1023 << 3;
constexpr std::int64_t kZeroBin = 8 * 63 + 1;

}  // namespace

void log_kernels_bins(const int64_t* integers, const uint8_t* present, const uint8_t* chosen, int64_t num_rows,
                      int64_t* counts) {
  // Integers of adjacent rows often fall into the same bin. So rows are counted alternately in two tables, which are
  // added up at the end: an addition then need not wait until the previous one is stored.
  std::int64_t tables[2][2 * kZeroBin + 1] = {};
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const double number = static_cast<double>(integers[row]);
    std::uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const std::int64_t upper_bits = static_cast<std::int64_t>(bits << 1 >> (kDroppedBits + 1));
    const std::int64_t size = upper_bits < kExponentOfOne ? 0 : upper_bits - (kExponentOfOne - 1);
    tables[row & 1][kZeroBin + (number < 0 ? -size : size)] += present[row] & chosen[row];
  }
  for (std::int64_t bin = 0; bin <= 2 * kZeroBin; ++bin) counts[bin] = tables[0][bin] + tables[1][bin];
}
