#include "kernels/kernels.h"

#include <cstring>

#include "kernels/finite.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

// Slots that follow each other share huge pages: large enough that two threads seldom wait for the same fresh one.
constexpr std::int64_t kRowsOfTask = 1024;

}  // namespace

bool write_rows(const Slots& view, HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count,
                const char* values, WrittenArrays* written, int num_threads) {
  const std::int64_t width = array_width(view, table, array), bytes = array_bytes(view, table, array);
  const bool are_numbers = has_numbers(view.layout, table, array), are_short = is_bfloat16(view.layout, table, array);
  const WrittenArrays bit = written_bit(table, array);
  bool finite = true;
#pragma omp parallel num_threads(num_threads) reduction(&& : finite)
  {
#pragma omp for schedule(dynamic, kRowsOfTask)
    for (std::int64_t i = 0; i < count; ++i) {
      const char* const row = values + i * bytes;
      char* const target = array_values(view, table, array, slots[i]);
      if (are_numbers && finite) {
        finite = are_short ? values_are_finite(reinterpret_cast<const Bfloat16*>(row), width)
                           : values_are_finite(reinterpret_cast<const float*>(row), width);
      }
      if (can_stream(target, bytes)) {
        stream_bytes(row, bytes, target);
      } else {
        std::memcpy(target, row, static_cast<std::size_t>(bytes));
      }
      if (written != nullptr) written[slots[i]] |= bit;
    }
    end_stream();
  }
  return finite;
}

}  // namespace host_tables::ISA
