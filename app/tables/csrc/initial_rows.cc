#include "initial_rows.h"

namespace host_tables::ISA {

void initialize(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids, std::int64_t count,
                std::int32_t first_slot, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t slot = first_slot + static_cast<std::int32_t>(i);
    initial_row(initial, row_ids[i], slots.embedding_dim, deep_state(slots, slot));
    wide_state(slots, slot)[1] = initial.accumulator;
  }
}

}  // namespace host_tables::ISA
