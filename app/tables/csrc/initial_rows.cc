#include "initial_rows.h"

namespace host_tables::ISA {

void initialize(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids, std::int64_t count,
                std::int32_t first_slot, int num_threads) {
  const RowLayout& layout = slots.layout;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t slot = first_slot + static_cast<std::int32_t>(i);
    initial_row(initial, row_ids[i], layout.embedding_dim, deep_state(slots, slot));
    if (layout.wide_states > 1) wide_state(slots, slot)[1] = initial.wide_accumulator;
    if (initial.deep_accumulator == 0.0f) continue;
    if (layout.deep_scalars > 0) {
      *deep_scalar(slots, slot) = initial.deep_accumulator;
    } else {
      float* const accumulator = deep_state(slots, slot) + layout.embedding_dim;
      for (std::int64_t column = 0; column < layout.embedding_dim; ++column) {
        accumulator[column] = initial.deep_accumulator;
      }
    }
  }
}

}  // namespace host_tables::ISA
