// Compute initial rows, bit for bit as app/tables/initial.py does.

#ifndef INITIAL_ROWS_H_
#define INITIAL_ROWS_H_

#include <initializer_list>

#include "kernels/bfloat16.h"
#include "kernels/hashes.h"
#include "kernels/kernels.h"

namespace host_tables {

constexpr std::uint64_t kDeepTable = 1;  // DEEP_TABLE in initial.py

static inline InitialValues initial_values(const HostTablesSpec& spec) {
  return {mix64(spec.seed + kGolden64 * kDeepTable), spec.initial_scale, spec.is_bfloat16 != 0,
          {spec.wide_initial_array, spec.deep_initial_array}, {spec.wide_initial_value, spec.deep_initial_value}};
}

static inline void set_value(float value, float* target) { *target = value; }
static inline void set_value(float value, Bfloat16* target) { *target = nearest(value); }

// Write the initial deep values of `row_id` to row [width]. With bfloat16, they are rounded even if Value is float.
template <typename Value>
static inline void initial_row(const InitialValues& initial, std::int64_t row_id, std::int64_t width, Value* row) {
  const std::uint64_t row_key = mix64(initial.table_key + kGolden64 * (static_cast<std::uint64_t>(row_id) + 1));
  for (std::int64_t column = 0; column < width; ++column) {
    const std::uint64_t hash = mix64(row_key + kGolden64 * static_cast<std::uint64_t>(column + 1));
    const float top_bits = static_cast<float>(static_cast<std::int32_t>(hash >> 40));
    const float value = (top_bits * 0x1p-23f - 1.0f) * initial.scale;
    set_value(initial.is_bfloat16 ? widened(nearest(value)) : value, row + column);
  }
}

constexpr int kRowArray = 0;  // number of the row itself among a table's arrays

// Return the set of a row's arrays (weights, optimizer state) that do not start at 0.
static inline WrittenArrays initial_arrays(const InitialValues& initial) {
  WrittenArrays arrays = written_bit(HOST_TABLES_DEEP, kRowArray);
  for (const HostTablesTable table : {HOST_TABLES_WIDE, HOST_TABLES_DEEP}) {
    if (initial.array[table] >= 0) arrays |= written_bit(table, initial.array[table]);
  }
  return arrays;
}

}  // namespace host_tables

#endif  // INITIAL_ROWS_H_
