// Describe the layout of a slot for the kernels: the memory with the rows and the optimizer state of one touched id.
//
// Kernels are compiled once for each instruction set, so everything in their headers has internal linkage
// (`static inline`). Of two ordinary inline functions with the same name the linker keeps one, and its instructions
// might not run on this machine.

#ifndef SLOTS_H_
#define SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "host_tables.h"

namespace host_tables {

using Bfloat16 = std::uint16_t;  // the upper 16 bits of a float

// The number of values in a slot, by kind. All but the deep states are 4-byte values.
struct RowLayout {
  std::int64_t embedding_dim;
  std::int64_t deep_states;   // arrays of D values, the row itself first
  std::int64_t deep_scalars;  // 0 to 2 values of 4 bytes per deep row: the optimizer's, then the step of the mean
  std::int64_t wide_states;   // If means are kept, the last two are a mean and its step.
  bool keeps_means;           // the last deep state is then the mean
  bool has_last_step;  // The first deep scalar is the row's last step, which also tells the step of the row's mean.
  bool is_bfloat16;    // the deep states are bfloat16

  std::int64_t deep_value_bytes() const { return is_bfloat16 ? 2 : 4; }
  std::int64_t deep_bytes() const { return deep_states * embedding_dim * deep_value_bytes(); }
  std::int64_t narrow_bytes() const { return (wide_states + deep_scalars) * 4; }
  // The narrow part of a slab starts behind the deep parts of all its slots, aligned to 4 bytes.
  std::int64_t narrow_start(int slab_bits) const { return ((deep_bytes() << slab_bits) + 3) / 4 * 4; }
};

struct Slots {
  char* const* slabs;
  int slab_bits;
  RowLayout layout;
};

// Return the address of a slot's deep part: D values of the row, then D values of each other state. Value must be
// Bfloat16 if layout.is_bfloat16, else float.
template <typename Value>
static inline Value* deep_state(const Slots& slots, std::int32_t slot) {
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  Value* const deep_part = reinterpret_cast<Value*>(slots.slabs[slot >> slots.slab_bits]);
  return deep_part + place * slots.layout.deep_states * slots.layout.embedding_dim;
}

// Return the address of a slot's deep part as bytes, for callers that do not depend on the type of its values.
static inline char* deep_bytes(const Slots& slots, std::int32_t slot) {
  return slots.layout.is_bfloat16 ? reinterpret_cast<char*>(deep_state<Bfloat16>(slots, slot))
                                  : reinterpret_cast<char*>(deep_state<float>(slots, slot));
}

// Return the address of a slot's wide row, which is followed by the other wide states.
static inline float* wide_state(const Slots& slots, std::int32_t slot) {
  const RowLayout& layout = slots.layout;
  const std::int64_t place = slot & ((std::int64_t{1} << slots.slab_bits) - 1);
  char* const narrow_part = slots.slabs[slot >> slots.slab_bits] + layout.narrow_start(slots.slab_bits);
  return reinterpret_cast<float*>(narrow_part) + place * (layout.wide_states + layout.deep_scalars);
}

// Return the address of a slot's first deep scalar, a value of 4 bytes that the deep table has once per row. The bits
// of an int32, such as the row's last step, are stored there unchanged.
static inline float* deep_scalar(const Slots& slots, std::int32_t slot) {
  return wide_state(slots, slot) + slots.layout.wide_states;
}

// Set all states of a slot to 0, as in fresh memory.
static inline void clear_slot(const Slots& slots, std::int32_t slot) {
  __builtin_memset(deep_bytes(slots, slot), 0, static_cast<std::size_t>(slots.layout.deep_bytes()));
  __builtin_memset(wide_state(slots, slot), 0, static_cast<std::size_t>(slots.layout.narrow_bytes()));
}

// Copy all states of a slot to a slot of another list of slabs.
static inline void copy_slot(const Slots& from, std::int32_t source, const Slots& to, std::int32_t target) {
  const RowLayout& layout = from.layout;
  __builtin_memcpy(deep_bytes(to, target), deep_bytes(from, source), static_cast<std::size_t>(layout.deep_bytes()));
  __builtin_memcpy(wide_state(to, target), wide_state(from, source), static_cast<std::size_t>(layout.narrow_bytes()));
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

// Return true if a state array holds float values and not step numbers.
static inline bool has_numbers(const RowLayout& layout, HostTablesTable table, int array) {
  if (table == HOST_TABLES_WIDE) return !layout.keeps_means || array != layout.wide_states - 1;
  if (array < layout.deep_states) return true;
  return !(array == layout.deep_states && layout.has_last_step) &&
         !(layout.keeps_means && array == layout.deep_states + layout.deep_scalars - 1);
}

// Return true if a state array holds bfloat16. Otherwise its values have 4 bytes.
static inline bool is_bfloat16(const RowLayout& layout, HostTablesTable table, int array) {
  return layout.is_bfloat16 && table == HOST_TABLES_DEEP && array < layout.deep_states;
}

// The location of one state array of a table (weights or optimizer state) in the slabs, the large blocks of memory that
// hold the slots.
struct SlotArray {
  char* const* slabs;
  int slab_bits;
  std::int64_t width, bytes;  // the number of values per slot, and their bytes
  // in bytes within a slab: the offset of the first slot's values, and the distance between slots
  std::int64_t start, stride;
};

static inline SlotArray slot_array(const Slots& slots, HostTablesTable table, int array) {
  const RowLayout& layout = slots.layout;
  if (table == HOST_TABLES_DEEP && array < layout.deep_states) {
    const std::int64_t bytes = layout.embedding_dim * layout.deep_value_bytes();
    return {slots.slabs, slots.slab_bits, layout.embedding_dim, bytes, array * bytes, layout.deep_bytes()};
  }
  const std::int64_t number = table == HOST_TABLES_WIDE ? array : layout.wide_states + array - layout.deep_states;
  const std::int64_t start = layout.narrow_start(slots.slab_bits) + number * 4;
  return {slots.slabs, slots.slab_bits, 1, 4, start, layout.narrow_bytes()};
}

// Return the address of a slot's values in the array.
static inline char* values_of(const SlotArray& array, std::int32_t slot) {
  const std::int64_t place = slot & ((std::int64_t{1} << array.slab_bits) - 1);
  return array.slabs[slot >> array.slab_bits] + array.start + place * array.stride;
}

// Copy the values of one slot. Most arrays have 4 bytes per slot, and for these a call of memcpy would take longer.
static inline void copy_values(const char* source, std::int64_t bytes, char* target) {
  if (bytes == 4) {
    __builtin_memcpy(target, source, 4);
  } else {
    __builtin_memcpy(target, source, static_cast<std::size_t>(bytes));
  }
}

// Prefetch into the second-level cache, which accepts more outstanding lines than the first.
static inline __attribute__((always_inline)) void prefetch_values(const char* values, std::int64_t bytes) {
  for (std::int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(values + byte, 0, 2);
}

// Bit set of the arrays of a slot that were written. A table has at most six arrays.
using WrittenArrays = std::uint16_t;

static inline WrittenArrays written_bit(HostTablesTable table, int array) {
  return static_cast<WrittenArrays>(1 << (8 * table + array));
}

}  // namespace host_tables

#endif  // SLOTS_H_
