#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

#include "kernels/finite.h"
#include "kernels/stream.h"
#include "storage/huge_memory.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kPrefetchAhead = 16;
constexpr std::int64_t kRowsPerTask = 256;

// Prefetch the cache lines of which copy_lines writes only a part.
PREFETCH_FUNCTION prefetch_ends(const char* target, std::int64_t bytes) {
  if (bytes_to_line(target) != 0) __builtin_prefetch(target, 1);
  if (bytes_to_line(target + bytes) != 0) __builtin_prefetch(target + bytes - 1, 1);
}

// Copy one 4-byte value. Return false if it is a float that is not finite. Avoiding the loops of longer rows halves
// the time, including the time to clear fresh pages.
bool copy_value(const char* source, bool is_number, char* target) {
  std::int32_t bits;
  std::memcpy(&bits, source, sizeof bits);
  std::memcpy(target, &bits, sizeof bits);
  return !is_number || (bits & kExponent) != kExponent;
}

// Copy values. Whole cache lines of the target are written past the caches.
void copy_lines(const char* source, std::int64_t bytes, char* target) {
  const std::int64_t head = std::min(bytes_to_line(target), bytes);
  const std::int64_t end = head + (bytes - head) / kLineBytes * kLineBytes;
  copy_values(source, head, target);
  stream_bytes(source + head, end - head, target + head);
  copy_values(source + end, bytes - end, target + end);
}

}  // namespace

bool write_rows(const Slots& view, HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count,
                const char* values, WrittenArrays* written, int num_threads) {
  const SlotArray states = slot_array(view, table, array);
  const bool are_numbers = has_numbers(view.layout, table, array), are_short = is_bfloat16(view.layout, table, array);
  const WrittenArrays bit = written_bit(table, array);
  // Consecutive slots share huge pages. If two threads took the same fresh page, both would clear one.
  const bool is_fresh = written != nullptr && count > 0 && written[slots[0]] == 0;
  const std::int64_t rows_of_page = std::max<std::int64_t>(1, static_cast<std::int64_t>(kHugePage) / states.stride);
  const std::int64_t rows_of_task = is_fresh ? rows_of_page : kRowsPerTask;
  bool finite = true;
#pragma omp parallel num_threads(num_threads) reduction(&& : finite)
  {
#pragma omp for schedule(dynamic, rows_of_task)
    for (std::int64_t i = 0; i < count; ++i) {
      const char* const row = values + i * states.bytes;
      char* const target = values_of(states, slots[i]);
      if (written != nullptr) written[slots[i]] |= bit;
      if (states.bytes == 4) {
        finite &= copy_value(row, are_numbers, target);
        continue;
      }
      if (are_numbers && finite) {
        finite = are_short ? values_are_finite(reinterpret_cast<const Bfloat16*>(row), states.width)
                           : values_are_finite(reinterpret_cast<const float*>(row), states.width);
      }
      if (i + kPrefetchAhead < count) prefetch_ends(values_of(states, slots[i + kPrefetchAhead]), states.bytes);
      copy_lines(row, states.bytes, target);
    }
    end_stream();
  }
  return finite;
}

}  // namespace host_tables::ISA
