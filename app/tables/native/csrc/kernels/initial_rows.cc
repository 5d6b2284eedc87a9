#include "kernels/initial_rows.h"

namespace host_tables::ISA {
namespace {

template <typename Value>
void initialize_deep(const Slots& slots, const InitialValues& initial, std::int64_t row_id, std::int32_t slot,
                     WrittenArrays arrays) {
  const std::int64_t width = slots.layout.embedding_dim;
  Value* const state = deep_state<Value>(slots, slot);
  if (arrays & written_bit(HOST_TABLES_DEEP, kRowArray)) initial_row(initial, row_id, width, state);
  const int array = initial.array[HOST_TABLES_DEEP];
  if (array < 0 || array >= slots.layout.deep_states || !(arrays & written_bit(HOST_TABLES_DEEP, array))) return;
  for (std::int64_t i = 0; i < width; ++i) set_value(initial.value[HOST_TABLES_DEEP], state + array * width + i);
}

// Set the given `arrays` (weights, optimizer state) of one row, at its place in memory, to their initial values.
void initialize_slot(const Slots& slots, const InitialValues& initial, std::int64_t row_id, std::int32_t slot,
                     WrittenArrays arrays) {
  const auto initialize_states = slots.layout.is_bfloat16 ? initialize_deep<Bfloat16> : initialize_deep<float>;
  initialize_states(slots, initial, row_id, slot, arrays);
  const int wide = initial.array[HOST_TABLES_WIDE];
  if (wide >= 0 && (arrays & written_bit(HOST_TABLES_WIDE, wide))) {
    wide_state(slots, slot)[wide] = initial.value[HOST_TABLES_WIDE];
  }
  const int scalar = initial.array[HOST_TABLES_DEEP] - static_cast<int>(slots.layout.deep_states);
  if (scalar >= 0 && (arrays & written_bit(HOST_TABLES_DEEP, initial.array[HOST_TABLES_DEEP]))) {
    deep_scalar(slots, slot)[scalar] = initial.value[HOST_TABLES_DEEP];
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
