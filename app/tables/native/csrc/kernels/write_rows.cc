#include "kernels/kernels.h"

#include <algorithm>

#include "kernels/finite.h"
#include "kernels/stream.h"
#include "storage/huge_memory.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kPrefetchAhead = 16;

}  // namespace

bool write_rows(const Slots& view, HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count,
                const char* values, WrittenArrays* written, int num_threads) {
  const SlotArray states = slot_array(view, table, array);
  const bool are_numbers = has_numbers(view.layout, table, array), are_short = is_bfloat16(view.layout, table, array);
  const WrittenArrays bit = written_bit(table, array);
  // Slots that follow each other share huge pages. Two threads that take the same fresh one clear two.
  const std::int64_t rows_of_task = std::max<std::int64_t>(1, static_cast<std::int64_t>(kHugePage) / states.stride);
  bool finite = true;
#pragma omp parallel num_threads(num_threads) reduction(&& : finite)
  {
#pragma omp for schedule(dynamic, rows_of_task)
    for (std::int64_t i = 0; i < count; ++i) {
      const char* const row = values + i * states.bytes;
      char* const target = values_of(states, slots[i]);
      if (are_numbers && finite) {
        finite = are_short ? values_are_finite(reinterpret_cast<const Bfloat16*>(row), states.width)
                           : values_are_finite(reinterpret_cast<const float*>(row), states.width);
      }
      if (can_stream(target, states.bytes)) {
        stream_bytes(row, states.bytes, target);
      } else {
        if (i + kPrefetchAhead < count) prefetch_values(values_of(states, slots[i + kPrefetchAhead]), states.bytes);
        copy_values(row, states.bytes, target);
      }
      if (written != nullptr) written[slots[i]] |= bit;
    }
    end_stream();
  }
  return finite;
}

}  // namespace host_tables::ISA
