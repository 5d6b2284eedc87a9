#include "kernels/initial_rows.h"

namespace host_tables::ISA {
namespace {

// Gives `arrays` of a slot their initial values.
void initialize_slot(const Slots& slots, const InitialValues& initial, std::int64_t row_id, std::int32_t slot,
                     WrittenArrays arrays) {
  if (arrays & written_bit(HOST_TABLES_DEEP, kRowArray)) {
    initial_row(initial, row_id, slots.layout.embedding_dim, deep_state(slots, slot));
  }
  for (const HostTablesTable table : {HOST_TABLES_WIDE, HOST_TABLES_DEEP}) {
    const int array = initial.array[table];
    if (array < 0 || !(arrays & written_bit(table, array))) continue;
    float* const values = array_values(slots, table, array, slot);
    const std::int64_t width = array_width(slots, table, array);
    for (std::int64_t column = 0; column < width; ++column) values[column] = initial.value[table];
  }
}

}  // namespace

void initialize(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids,
                const std::int32_t* row_slots, std::int64_t count, const WrittenArrays* written, int num_threads) {
  const WrittenArrays all = initial_arrays(initial);
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t slot = row_slots[i];
    const unsigned present = written == nullptr ? 0u : written[slot];
    initialize_slot(slots, initial, row_ids[i], slot, static_cast<WrittenArrays>(all & ~present));
  }
}

}  // namespace host_tables::ISA
