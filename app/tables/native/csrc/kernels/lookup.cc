#include "kernels/kernels.h"

#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/initial_rows.h"
#include "kernels/late_rows.h"
#include "kernels/positions.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

// Number of positions per task. Tasks are so small that other threads can take over work of a thread that was held up.
constexpr std::int64_t kPositionsPerTask = 1024;
constexpr std::int64_t kRowsPerTask = 256;   // batch rows per task of the wide sum
constexpr std::int64_t kPrefetchAhead = 6;   // number of distinct ids to prefetch ahead
constexpr std::int64_t kWideRowsAhead = 64;  // number of distinct ids to prefetch ahead if only wide rows are read

// The inputs and outputs of all tasks.
struct Lookup {
  const Slots& slots;
  const InitialValues& initial;
  const HostTablesBatch& batch;
  const std::int32_t* row_slots;
  const HostTablesHistory* history;  // null unless rows may have missed steps
  float* deep;
  float* wide;
  float* wide_rows;
  double* squared_norms;
  float* computed;     // used with lists or a history
  const float** rows;  // used with lists: address of the deep row of each distinct id
};

// Return Σ x² in float64. Summing in eight lanes gives the same bits for all instruction sets.
inline double squared_norm(const float* row, std::int64_t width) {
  constexpr std::int64_t kLanes = 8;
  const std::int64_t rest = width % kLanes;
  double lanes[kLanes] = {};
  for (std::int64_t column = 0; column < width - rest; column += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = row[column + lane];
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t lane = 0; lane < rest; ++lane) {
    const double value = row[width - rest + lane];
    lanes[lane] += value * value;
  }
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

template <typename Value>
PREFETCH_FUNCTION prefetch_state(const Lookup& lookup, std::int64_t u) {
  if (u >= lookup.batch.num_unique || lookup.row_slots[u] < 0) return;
  prefetch_row(deep_state<Value>(lookup.slots, lookup.row_slots[u]), lookup.slots.layout.embedding_dim);
  __builtin_prefetch(wide_state(lookup.slots, lookup.row_slots[u]));
}

// Return the deep row of distinct id u. An untouched row is computed in `room`, and a bfloat16 row is widened there.
// With a history, rows that were untouched or had missed steps have already been computed.
template <typename Value>
const float* deep_row(const Lookup& lookup, std::int64_t u, float* room) {
  const std::int64_t embedding_dim = lookup.slots.layout.embedding_dim;
  const std::int32_t slot = lookup.row_slots[u];
  if (lookup.history != nullptr && is_late(lookup.slots, slot, *lookup.history)) {
    return lookup.computed + u * 3 * embedding_dim;
  }
  if (slot >= 0) return as_floats(deep_state<Value>(lookup.slots, slot), embedding_dim, room);
  initial_row(lookup.initial, lookup.batch.values[u], embedding_dim, room);
  return room;
}

float wide_row(const Lookup& lookup, std::int64_t u) {
  return lookup.row_slots[u] < 0 ? 0.0f : wide_state(lookup.slots, lookup.row_slots[u])[0];
}

// Copy one row. A row of whole cache lines is streamed, unless kWidth is kAnyWidth. If the compiler knows the width,
// D 80 takes a fifth less time, and D 8 is one instruction.
template <std::int64_t kWidth>
void copy_row(const float* source, std::int64_t width, float* target) {
  if constexpr (kWidth == kAnyWidth) {
    std::memmove(target, source, static_cast<std::size_t>(width) * sizeof(float));
  } else if constexpr (kWidth % kLineFloats == 0) {
    stream_row(source, kWidth, target);
  } else {
    typedef float Row __attribute__((vector_size(kWidth * sizeof(float))));
    Row row;  // GCC 12 calls a function to move 32 bytes, so a vector is used
    std::memcpy(&row, source, sizeof row);
    std::memcpy(target, &row, sizeof row);
  }
}

// Write the row of distinct id u to its positions, entries begin ... end - 1 of `positions`.
template <typename Value, std::int64_t kWidth>
void look_up_positions(const Lookup& lookup, std::int64_t u, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = kWidth == kAnyWidth ? lookup.slots.layout.embedding_dim : kWidth;
  const std::int32_t* const positions = lookup.batch.positions;
  // the row, in the first-level cache, from where it is streamed to all positions
  alignas(64) float near[kWidth == kAnyWidth ? 1 : kWidth];
  float* const room = kWidth == kAnyWidth ? lookup.deep + positions[begin] * width : near;
  const float* const row = deep_row<Value>(lookup, u, room);
  if (begin == lookup.batch.offsets[u]) {
    lookup.squared_norms[u] = squared_norm(row, width);
    lookup.wide_rows[u] = wide_row(lookup, u);
  }
  for (std::int64_t i = begin; i < end; ++i) copy_row<kWidth>(row, width, lookup.deep + positions[i] * width);
}

// Return the distinct id to which entry `i` of `positions` belongs.
std::int64_t id_of_place(const HostTablesBatch& batch, std::int64_t i) {
  std::int64_t low = 0, high = batch.num_unique - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (batch.offsets[middle] <= i) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename Value, std::int64_t kWidth>
void look_up_deep(const Lookup& lookup, std::int64_t begin, std::int64_t end) {
  for (std::int64_t u = id_of_place(lookup.batch, begin); begin < end; ++u) {
    prefetch_state<Value>(lookup, u + kPrefetchAhead);
    const std::int64_t end_of_id = lookup.batch.offsets[u + 1] < end ? lookup.batch.offsets[u + 1] : end;
    look_up_positions<Value, kWidth>(lookup, u, begin, end_of_id);
    begin = end_of_id;
  }
}

using LookUpDeep = void (*)(const Lookup& lookup, std::int64_t begin, std::int64_t end);

template <typename Value>
LookUpDeep choose_look_up_deep(const float* deep, std::int64_t width) {
  if (width == 8) return look_up_deep<Value, 8>;
  if (!can_stream(deep, width * static_cast<std::int64_t>(sizeof(float)))) return look_up_deep<Value, kAnyWidth>;
  switch (width) {
    case 16:
      return look_up_deep<Value, 16>;
    case 32:
      return look_up_deep<Value, 32>;
    case 64:
      return look_up_deep<Value, 64>;
    case 80:
      return look_up_deep<Value, 80>;
    case 128:
      return look_up_deep<Value, 128>;
    default:
      return look_up_deep<Value, kAnyWidth>;
  }
}

// Store the wide row of distinct id u, and the address of its deep row, which is computed if it is not stored as
// float32.
template <typename Value>
void prepare_lists(const Lookup& lookup, std::int64_t u) {
  const std::int64_t ahead = u + kWideRowsAhead;
  if (ahead < lookup.batch.num_unique && lookup.row_slots[ahead] >= 0) {
    __builtin_prefetch(wide_state(lookup.slots, lookup.row_slots[ahead]));
  }
  lookup.wide_rows[u] = wide_row(lookup, u);
  const std::int64_t computed_arrays = lookup.history != nullptr ? 3 : 1;
  float* const room = lookup.computed + u * computed_arrays * lookup.slots.layout.embedding_dim;
  lookup.rows[u] = deep_row<Value>(lookup, u, room);
}

// Return the first distinct id whose first position is at or after `position`. Ids are numbered in the order of
// first positions.
std::int64_t next_new_id(const HostTablesBatch& batch, std::int64_t position) {
  std::int64_t low = 0, high = batch.num_unique;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (batch.positions[batch.offsets[middle]] < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Prefetch the addresses that are needed to find, and later prefetch, the row of a position.
PREFETCH_FUNCTION prefetch_id(const Lookup& lookup, std::int64_t position) {
  const std::int32_t u = lookup.batch.inverse[positions_ahead(lookup.batch, position, 2 * kPositionsFarAhead)];
  __builtin_prefetch(lookup.rows + u);
  __builtin_prefetch(lookup.wide_rows + u);
}

// Pool the fields of one batch row. The norm of an id is computed at its first position, when its row is in the
// cache.
void pool_fields(const Lookup& lookup, std::int64_t row, std::int64_t* new_id) {
  const HostTablesBatch& batch = lookup.batch;
  const std::int64_t width = lookup.slots.layout.embedding_dim;
  const auto row_of = [&](std::int64_t position) { return lookup.rows[batch.inverse[position]]; };
  for (std::int64_t place = row * batch.num_fields; place < (row + 1) * batch.num_fields; ++place) {
    const std::int64_t end = batch.first[place + 1];
    for (std::int64_t i = batch.first[place]; i < end; ++i) prefetch_id(lookup, i);
    pool_row(batch, place, width, row_of, lookup.deep + place * width);
    for (; *new_id < batch.num_unique && batch.positions[batch.offsets[*new_id]] < end; ++*new_id) {
      lookup.squared_norms[*new_id] = squared_norm(lookup.rows[*new_id], width);
    }
  }
  lookup.wide[row] = sum_wide_rows(batch, row, lookup.wide_rows);
}

// With a history (optimizer `adam`), compute the untouched rows, and the rows that must take missed steps first. All
// threads of the parallel region must call this.
void catch_up(const Lookup& lookup) {
  if (lookup.history == nullptr) return;
  catch_up_batch(lookup.slots, lookup.initial, lookup.batch, lookup.row_slots, *lookup.history, lookup.computed);
}

template <typename Value>
void look_up_lists(const Lookup& lookup, int num_threads) {
  const HostTablesBatch& batch = lookup.batch;
#pragma omp parallel num_threads(num_threads)
  {
    catch_up(lookup);
#pragma omp for schedule(static)
    for (std::int64_t u = 0; u < batch.num_unique; ++u) prepare_lists<Value>(lookup, u);
#pragma omp for schedule(dynamic)
    for (std::int64_t begin = 0; begin < batch.num_rows; begin += kRowsPerTask) {
      const std::int64_t end = begin + kRowsPerTask < batch.num_rows ? begin + kRowsPerTask : batch.num_rows;
      std::int64_t new_id = next_new_id(batch, batch.first[begin * batch.num_fields]);
      for (std::int64_t row = begin; row < end; ++row) pool_fields(lookup, row, &new_id);
    }
  }
}

template <typename Value>
void look_up_fields(const Lookup& lookup, int num_threads) {
  const HostTablesBatch& batch = lookup.batch;
  const LookUpDeep look_up_deep = choose_look_up_deep<Value>(lookup.deep, lookup.slots.layout.embedding_dim);
  const std::int64_t num_positions = batch.num_positions;
#pragma omp parallel num_threads(num_threads)
  {
    catch_up(lookup);
#pragma omp for schedule(dynamic)
    for (std::int64_t begin = 0; begin < num_positions; begin += kPositionsPerTask) {
      const std::int64_t end = begin + kPositionsPerTask;
      look_up_deep(lookup, begin, end < num_positions ? end : num_positions);
    }
    end_stream();
#pragma omp for schedule(dynamic, kRowsPerTask)
    for (std::int64_t row = 0; row < batch.num_rows; ++row) {
      lookup.wide[row] = sum_wide_rows(batch, row, lookup.wide_rows);
    }
  }
}

template <typename Value>
void look_up(const Lookup& lookup, int num_threads) {
  return lookup.batch.first == nullptr ? look_up_fields<Value>(lookup, num_threads)
                                       : look_up_lists<Value>(lookup, num_threads);
}

}  // namespace

void lookup(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
            const std::int32_t* row_slots, const HostTablesHistory* history, float* deep, float* wide,
            float* wide_rows, double* squared_norms, float* computed, const float** rows, int num_threads) {
  const Lookup all = {slots, initial,   batch,         row_slots, history, deep,
                      wide,  wide_rows, squared_norms, computed,  rows};
  return slots.layout.is_bfloat16 ? look_up<Bfloat16>(all, num_threads) : look_up<float>(all, num_threads);
}

}  // namespace host_tables::ISA
