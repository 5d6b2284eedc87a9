// Let the rows of a batch take the `adam` steps that they missed (steps whose batches did not have the row), several
// rows at a time.

#ifndef LATE_ROWS_H_
#define LATE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/bfloat16.h"
#include "kernels/initial_rows.h"
#include "kernels/missed_steps.h"
#include "kernels/stream.h"
#include "storage/slots.h"

namespace host_tables {
namespace {  // Internal linkage gives each instruction set its own instance of std::sort for LateRow.

constexpr std::int64_t kIdsPerTask = 128;
constexpr std::int64_t kIdsAhead = 6;
constexpr std::int64_t kRowsTogether = 16;  // Rows of at most kNarrow columns that are processed together.
constexpr std::int64_t kNarrow = 16;

struct LateRow {
  const float* from;  // the row [D] and both moments [D] after step `last`
  float* state;       // output: the same values after all steps
  std::int64_t last;
  std::int64_t steps;  // number of steps that are taken one by one
};

// Copy `width` <= kColumns floats. A full copy, the usual case, is one or two instructions.
template <std::int64_t kColumns>
inline void copy_columns(const float* from, std::int64_t width, float* to) {
  if (width == kColumns) {
    std::memcpy(to, from, kColumns * sizeof(float));
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(width) * sizeof(float));
  }
}

// Take the missed steps of `count` rows of `width` <= kColumns columns. The rows with the most steps come first. The
// steps of one row are a chain of dependent operations; processing rows together lets their chains run in parallel.
// Columns beyond `width` are 0, and their results are ignored.
template <std::int64_t kColumns>
inline void catch_up_together(const LateRow* late, std::int64_t count, std::int64_t width,
                              const HostTablesHistory& history) {
  alignas(64) float states[3][kRowsTogether][kColumns];
  if (width < kColumns) std::memset(states, 0, sizeof states);
  auto& [rows, first, second] = states;
  for (std::int64_t k = 0; k < count; ++k) {
    for (int array = 0; array < 3; ++array) copy_columns<kColumns>(late[k].from + array * width, width, states[array][k]);
  }
  std::int64_t active = count;
  for (std::int64_t taken = 1;; ++taken) {
    while (active > 0 && late[active - 1].steps < taken) --active;
    if (active == 0) break;
    for (std::int64_t k = 0; k < active; ++k) {
      const std::int64_t step = late[k].last + taken;
      missed_step(rows[k], first[k], second[k], kColumns, history.rates[step], history.epsilons[step], history);
    }
  }
  std::int64_t last[kRowsTogether];
  for (std::int64_t k = 0; k < count; ++k) last[k] = late[k].last + late[k].steps;
  const std::int64_t earliest = count > 0 ? *std::min_element(last, last + count) : history.step;
  for (std::int64_t length = kFirstSegment, taken = earliest; taken < history.step; length += length / 2) {
    taken += length;
    for (std::int64_t k = 0; k < count; ++k) {
      if (last[k] < history.step) last[k] = take_segment(rows[k], first[k], second[k], kColumns, last[k], length, history);
    }
  }
  for (std::int64_t k = 0; k < count; ++k) {
    for (int array = 0; array < 3; ++array) copy_columns<kColumns>(states[array][k], width, late[k].state + array * width);
  }
}

inline void catch_up_rows(LateRow* late, std::int64_t count, std::int64_t width, const HostTablesHistory& history) {
  if (width > kNarrow) {  // A wide row has enough independent columns by itself.
    for (const LateRow* row = late; row != late + count; ++row) {
      if (row->from != row->state) std::memcpy(row->state, row->from, static_cast<std::size_t>(3 * width) * sizeof(float));
      catch_up(row->state, row->state + width, row->state + 2 * width, width, row->last, history);
    }
    return;
  }
  std::sort(late, late + count, [](const LateRow& left, const LateRow& right) { return left.steps > right.steps; });
  for (std::int64_t begin = 0; begin < count; begin += kRowsTogether) {
    const std::int64_t together = std::min(kRowsTogether, count - begin);
    const auto catch_up = width <= 8 ? catch_up_together<8> : catch_up_together<kNarrow>;
    catch_up(late + begin, together, width, history);
  }
}

inline bool is_late(const Slots& slots, std::int32_t slot, const HostTablesHistory& history) {
  return slot < 0 || last_step(slots, slot) != history.step;
}

// Compute the missed steps of the rows of the distinct ids begin ... end - 1 (at most kIdsPerTask). For untouched rows
// and rows that missed steps, write row and moments after history.step to `caught_up` [U, 3 * D] at the id's index. The
// rows in the tables do not change.
template <typename Value>
inline void catch_up_ids(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
                  const std::int32_t* row_slots, const HostTablesHistory& history, std::int64_t begin,
                  std::int64_t end, float* caught_up) {
  const std::int64_t width = slots.layout.embedding_dim;
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  LateRow late[kIdsPerTask];
  std::int64_t count = 0;
  for (std::int64_t u = begin; u < end; ++u) {
    if (u + kIdsAhead < end && row_slots[u + kIdsAhead] >= 0) {
      prefetch_row(deep_state<Value>(slots, row_slots[u + kIdsAhead]), 3 * width);
      __builtin_prefetch(deep_scalar(slots, row_slots[u + kIdsAhead]));
    }
    const std::int32_t slot = row_slots[u];
    if (!is_late(slots, slot, history)) continue;
    float* const state = caught_up + u * 3 * width;
    const float* from = state;
    std::int64_t last = 0;
    if (slot < 0) {
      initial_row(initial, batch.values[u], width, state);
      std::memset(state + width, 0, 2 * bytes);
    } else {
      if constexpr (std::is_same_v<Value, float>) {
        from = deep_state<float>(slots, slot);
      } else {
        widen(deep_state<Value>(slots, slot), 3 * width, state);
      }
      last = std::max(last_step(slots, slot), 0);  // Python rejects negative last steps.
    }
    const std::int64_t missed = history.step - last;
    late[count++] = {from, state, last, std::min<std::int64_t>(missed, history.most_exact_steps)};
  }
  catch_up_rows(late, count, width, history);
}

// Call catch_up_ids for all distinct ids of the batch. All threads of the parallel region must call this.
inline void catch_up_batch(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
                    const std::int32_t* row_slots, const HostTablesHistory& history, float* caught_up) {
#pragma omp for schedule(dynamic)
  for (std::int64_t begin = 0; begin < batch.num_unique; begin += kIdsPerTask) {
    const std::int64_t end = std::min(begin + kIdsPerTask, batch.num_unique);
    const auto catch_up = slots.layout.is_bfloat16 ? catch_up_ids<Bfloat16> : catch_up_ids<float>;
    catch_up(slots, initial, batch, row_slots, history, begin, end, caught_up);
  }
}

}  // namespace
}  // namespace host_tables

#endif  // LATE_ROWS_H_
