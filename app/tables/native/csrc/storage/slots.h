// The layout of a slot's state, for the kernels.
//
// Kernels are compiled once for each instruction set. What their headers define has internal linkage
// (`static inline`): of two inline functions of one name the linker keeps one, perhaps the one whose
// instructions this machine lacks.

#ifndef SLOTS_H_
#define SLOTS_H_

#include <cstdint>

#include "host_tables.h"

namespace host_tables {

// How many floats a slot has of what.
struct RowLayout {
  std::int64_t embedding_dim;
  std::int64_t deep_states;   // arrays of D floats, the row itself first
  std::int64_t deep_scalars;  // 4-byte values a deep row: 0 or 1
  std::int64_t wide_states;
};

struct Slots {
  float* const* slabs;
  int slab_bits;
  RowLayout layout;
};

// The D values of a row, then its D values of each other state.
static inline float* deep_state(const Slots& slots, std::int32_t slot) {
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  return slots.slabs[slot >> slots.slab_bits] + place * slots.layout.deep_states * slots.layout.embedding_dim;
}

// The wide row, then its other states.
static inline float* wide_state(const Slots& slots, std::int32_t slot) {
  const RowLayout& layout = slots.layout;
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  float* const narrow_part =
      slots.slabs[slot >> slots.slab_bits] + (layout.deep_states * layout.embedding_dim << slots.slab_bits);
  return narrow_part + place * (layout.wide_states + layout.deep_scalars);
}

// The deep row's one value, where it has one; an int32 has its bits there.
static inline float* deep_scalar(const Slots& slots, std::int32_t slot) {
  return wide_state(slots, slot) + slots.layout.wide_states;
}

static inline std::int32_t last_step(const Slots& slots, std::int32_t slot) {
  std::int32_t step;
  __builtin_memcpy(&step, deep_scalar(slots, slot), sizeof step);
  return step;
}

static inline void set_last_step(const Slots& slots, std::int32_t slot, std::int32_t step) {
  __builtin_memcpy(deep_scalar(slots, slot), &step, sizeof step);
}

// How many values of 4 bytes a row has in state array number `array` of a table.
static inline std::int64_t array_width(const Slots& slots, HostTablesTable table, int array) {
  return table == HOST_TABLES_WIDE || array == slots.layout.deep_states ? 1 : slots.layout.embedding_dim;
}

// Their addresses.
static inline float* array_values(const Slots& slots, HostTablesTable table, int array, std::int32_t slot) {
  if (table == HOST_TABLES_WIDE) return wide_state(slots, slot) + array;
  if (array == slots.layout.deep_states) return deep_scalar(slots, slot);
  return deep_state(slots, slot) + array * slots.layout.embedding_dim;
}

// Of a slot: which of its arrays were written, a bit each. A table has four at most.
using WrittenArrays = std::uint8_t;

static inline WrittenArrays written_bit(HostTablesTable table, int array) {
  return static_cast<WrittenArrays>(1 << (4 * table + array));
}

}  // namespace host_tables

#endif  // SLOTS_H_
