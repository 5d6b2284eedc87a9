// The layout of a slot's state, for the kernels.
//
// Kernels are compiled once for each instruction set. What their headers define has internal linkage
// (`static inline`): of two inline functions of one name the linker keeps one, perhaps the one whose
// instructions this machine lacks.

#ifndef SLOTS_H_
#define SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "host_tables.h"

namespace host_tables {

// How many floats a slot has of what.
struct RowLayout {
  std::int64_t embedding_dim;
  std::int64_t deep_states;   // arrays of D floats, the row itself first
  std::int64_t deep_scalars;  // 4-byte values a deep row: the optimizer's, then the step of its mean; 0, 1 or 2
  std::int64_t wide_states;   // the last two are a mean and its step, where means are kept
  bool keeps_means;           // the last deep state is the mean
  bool has_last_step;         // the first deep scalar is the row's last step, by which its mean's is known
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

// The first value that a deep row has one of; an int32 has its bits there.
static inline float* deep_scalar(const Slots& slots, std::int32_t slot) {
  return wide_state(slots, slot) + slots.layout.wide_states;
}

// All states of a slot become 0, as in memory that was never used.
static inline void clear_slot(const Slots& slots, std::int32_t slot) {
  const RowLayout& layout = slots.layout;
  const std::int64_t deep = layout.deep_states * layout.embedding_dim, narrow = layout.wide_states + layout.deep_scalars;
  __builtin_memset(deep_state(slots, slot), 0, static_cast<std::size_t>(deep) * sizeof(float));
  __builtin_memset(wide_state(slots, slot), 0, static_cast<std::size_t>(narrow) * sizeof(float));
}

static inline std::int32_t step_at(const float* place) {
  std::int32_t step;
  __builtin_memcpy(&step, place, sizeof step);
  return step;
}

static inline void set_step_at(float* place, std::int32_t step) { __builtin_memcpy(place, &step, sizeof step); }

static inline std::int32_t last_step(const Slots& slots, std::int32_t slot) {
  return step_at(deep_scalar(slots, slot));
}

static inline void set_last_step(const Slots& slots, std::int32_t slot, std::int32_t step) {
  set_step_at(deep_scalar(slots, slot), step);
}

// True if state array number `array` of a table has float32 values, and not steps.
static inline bool is_float(const RowLayout& layout, HostTablesTable table, int array) {
  if (table == HOST_TABLES_WIDE) return !layout.keeps_means || array != layout.wide_states - 1;
  if (array < layout.deep_states) return true;
  return !(array == layout.deep_states && layout.has_last_step) &&
         !(layout.keeps_means && array == layout.deep_states + layout.deep_scalars - 1);
}

// How many values of 4 bytes a row has in state array number `array` of a table.
static inline std::int64_t array_width(const Slots& slots, HostTablesTable table, int array) {
  return table == HOST_TABLES_WIDE || array >= slots.layout.deep_states ? 1 : slots.layout.embedding_dim;
}

// Their addresses.
static inline float* array_values(const Slots& slots, HostTablesTable table, int array, std::int32_t slot) {
  if (table == HOST_TABLES_WIDE) return wide_state(slots, slot) + array;
  if (array >= slots.layout.deep_states) return deep_scalar(slots, slot) + (array - slots.layout.deep_states);
  return deep_state(slots, slot) + array * slots.layout.embedding_dim;
}

// Of a slot: which of its arrays were written, a bit each. A table has six at most.
using WrittenArrays = std::uint16_t;

static inline WrittenArrays written_bit(HostTablesTable table, int array) {
  return static_cast<WrittenArrays>(1 << (8 * table + array));
}

}  // namespace host_tables

#endif  // SLOTS_H_
