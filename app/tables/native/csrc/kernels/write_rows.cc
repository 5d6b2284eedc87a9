#include "kernels/kernels.h"

#include <cstring>

#include "kernels/finite.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

// Slots that follow each other share huge pages: large enough that two threads seldom wait for the same fresh one.
constexpr std::int64_t kRowsOfTask = 1024;

}  // namespace

bool write_rows(const Slots& view, HostTablesTable table, int array, bool is_float, const std::int32_t* slots,
                std::int64_t count, const float* values, WrittenArrays* written, int num_threads) {
  const std::int64_t width = array_width(view, table, array);
  const WrittenArrays bit = written_bit(table, array);
  bool finite = true;
#pragma omp parallel num_threads(num_threads) reduction(&& : finite)
  {
#pragma omp for schedule(dynamic, kRowsOfTask)
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const row = values + i * width;
      float* const target = array_values(view, table, array, slots[i]);
      if (is_float) finite = finite && values_are_finite(row, width);
      if (can_stream(target, width)) {
        stream_row(row, width, target);
      } else {
        std::memcpy(target, row, static_cast<std::size_t>(width) * sizeof(float));
      }
      if (written != nullptr) written[slots[i]] |= bit;
    }
    end_stream();
  }
  return finite;
}

}  // namespace host_tables::ISA
