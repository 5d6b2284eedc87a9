// Where the state of a slot lies, for the kernels.
//
// Kernels are compiled once for each instruction set. What their headers define has internal linkage
// (`static inline`): of two inline functions of one name the linker keeps one, perhaps the one whose
// instructions this machine lacks.

#ifndef SLOTS_H_
#define SLOTS_H_

#include <cstdint>

#include "host_tables.h"

namespace host_tables {

constexpr std::int64_t kStatesPerRow = 3;

struct Slots {
  float* const* slabs;
  int slab_bits;
  std::int64_t embedding_dim;
};

// The D values of a row, then its D first moments, then its D second moments.
static inline float* deep_state(const Slots& slots, std::int32_t slot) {
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  return slots.slabs[slot >> slots.slab_bits] + place * kStatesPerRow * slots.embedding_dim;
}

// The wide row, its accumulator, its linear term.
static inline float* wide_state(const Slots& slots, std::int32_t slot) {
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  float* const wide_part =
      slots.slabs[slot >> slots.slab_bits] + (kStatesPerRow * slots.embedding_dim << slots.slab_bits);
  return wide_part + place * kStatesPerRow;
}

// How many values of 4 bytes a row has in state array number `array` of a table.
static inline std::int64_t array_width(const Slots& slots, HostTablesTable table, int) {
  return table == HOST_TABLES_WIDE ? 1 : slots.embedding_dim;
}

// Where they lie.
static inline float* array_values(const Slots& slots, HostTablesTable table, int array, std::int32_t slot) {
  return table == HOST_TABLES_WIDE ? wide_state(slots, slot) + array
                                   : deep_state(slots, slot) + array * slots.embedding_dim;
}

}  // namespace host_tables

#endif  // SLOTS_H_
