// Compute the running means of rows, bit for bit as RunningMean in app/tables/optimizers.py does.

#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/bfloat16.h"
#include "kernels/initial_rows.h"
#include "kernels/missed_steps.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kRowsPerTask = 256;
constexpr std::int64_t kRowsAhead = 6;

// Bring the mean of a `row` [width] that did not change from step `from` to means.step. Write the result to
// `advanced`.
template <typename Value>
void still_mean(const HostTablesMeans& means, const Value* row, const Value* mean, std::int64_t width, std::int64_t from,
                float* advanced) {
  const float kept = kept_distance(means, from, means.step);
  for (std::int64_t i = 0; i < width; ++i) {
    const float value = widened(row[i]);
    advanced[i] = value + kept * (widened(mean[i]) - value);
  }
}

template <typename Value>
Value* deep_mean(const Slots& slots, std::int32_t slot) {
  return deep_state<Value>(slots, slot) + (slots.layout.deep_states - 1) * slots.layout.embedding_dim;
}

float* deep_mean_step(const Slots& slots, std::int32_t slot) {
  return deep_scalar(slots, slot) + slots.layout.deep_scalars - 1;
}

float wide_mean(const Slots& slots, std::int32_t slot, const HostTablesMeans& means) {
  const float* const state = wide_state(slots, slot);
  const std::int64_t place = slots.layout.wide_states - 2;
  float mean;
  still_mean(means, state, state + place, 1, step_at(state + place + 1), &mean);
  return mean;
}

// Bring columns of a deep row's running mean up to means.step. The row has not changed since the step that the mean
// belongs to. The mean is the last of the deep states (the arrays with D values per row).
template <typename Value>
void advance_columns(const Slots& slots, std::int32_t slot, std::uint32_t word, std::int64_t begin, std::int64_t width,
                     const HostTablesMeans& means) {
  const Value* const row = deep_state<Value>(slots, slot) + begin;
  Value* const mean = deep_mean<Value>(slots, slot) + begin;
  const std::int64_t from = step_at(deep_mean_step(slots, slot));
  if constexpr (std::is_same_v<Value, float>) {
    still_mean(means, row, mean, width, from, mean);
  } else {
    float advanced[kMissedColumns];
    still_mean(means, row, mean, width, from, advanced);
    store_any_array(static_cast<int>(slots.layout.deep_states) - 1, word, begin, width, advanced, mean);
  }
}

template <typename Value>
void advance_row(const Slots& slots, std::int64_t row_id, std::int32_t slot, const HostTablesHistory* history,
                 const HostTablesMeans& means, std::uint64_t rounding_key) {
  const std::int64_t embedding_dim = slots.layout.embedding_dim;
  const auto step = static_cast<std::int32_t>(means.step);
  float* const wide = wide_state(slots, slot) + slots.layout.wide_states - 2;
  wide[0] = wide_mean(slots, slot, means);
  set_step_at(wide + 1, step);
  const std::uint32_t word = row_word(rounding_key, row_id);
  for (std::int64_t begin = 0; begin < embedding_dim; begin += kMissedColumns) {
    const std::int64_t width = std::min(kMissedColumns, embedding_dim - begin);
    if (history == nullptr) {
      advance_columns<Value>(slots, slot, word, begin, width, means);
      continue;
    }
    const auto catch_up_columns = [&](float* states, std::int64_t stride) {
      catch_up_with_mean(states, states + stride, states + 2 * stride, states + 3 * stride, width,
                         last_step(slots, slot), *history, means);
    };
    change_states<Value, kMostStates, kMissedColumns>(slots, slot, word, begin, width, embedding_dim, catch_up_columns);
  }
  set_step_at(history == nullptr ? deep_mean_step(slots, slot) : deep_scalar(slots, slot), step);
}

// Write the mean of a deep row to `mean` [D]. With `adam`, `scratch` [3 * D] is used.
template <typename Value>
void read_deep_mean(const Slots& slots, const InitialValues& initial, std::int64_t row_id, std::int32_t slot,
                    const HostTablesHistory* history, const HostTablesMeans& means, float* scratch, float* mean) {
  const std::int64_t width = slots.layout.embedding_dim;
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  if (history == nullptr) {
    if (slot < 0) return initial_row(initial, row_id, width, mean);
    const Value* const row = deep_state<Value>(slots, slot);
    return still_mean(means, row, deep_mean<Value>(slots, slot), width, step_at(deep_mean_step(slots, slot)), mean);
  }
  if (slot < 0) {
    initial_row(initial, row_id, width, scratch);
    std::memset(scratch + width, 0, 2 * bytes);
    std::memset(mean, 0, bytes);
  } else {
    std::memmove(scratch, as_floats(deep_state<Value>(slots, slot), 3 * width, scratch), 3 * bytes);
    std::memmove(mean, as_floats(deep_mean<Value>(slots, slot), width, mean), bytes);
  }
  const std::int64_t last = slot < 0 ? 0 : last_step(slots, slot);
  catch_up_with_mean(scratch, scratch + width, scratch + 2 * width, mean, width, last, *history, means);
}

template <typename Value>
void advance_rows(const Slots& slots, const std::int64_t* row_ids, const std::int32_t* row_slots, std::int64_t count,
                  const HostTablesHistory* history, const HostTablesMeans& means, std::uint64_t rounding_key,
                  int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kRowsPerTask)
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) {
      const std::int32_t ahead = row_slots[i + kRowsAhead];
      prefetch_row(deep_state<Value>(slots, ahead), slots.layout.deep_states * slots.layout.embedding_dim);
      __builtin_prefetch(wide_state(slots, ahead));
    }
    advance_row<Value>(slots, row_ids[i], row_slots[i], history, means, rounding_key);
  }
}

}  // namespace

void advance_means(const Slots& slots, const std::int64_t* row_ids, const std::int32_t* row_slots, std::int64_t count,
                   const HostTablesHistory* history, const HostTablesMeans& means, std::uint64_t rounding_key,
                   int num_threads) {
  const auto advance = slots.layout.is_bfloat16 ? advance_rows<Bfloat16> : advance_rows<float>;
  advance(slots, row_ids, row_slots, count, history, means, rounding_key, num_threads);
}

void read_means(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids,
                const std::int32_t* row_slots, std::int64_t count, const HostTablesHistory* history,
                const HostTablesMeans& means, float* scratch, float* deep, float* wide, int num_threads) {
  const std::int64_t width = slots.layout.embedding_dim;
  const auto read_deep = slots.layout.is_bfloat16 ? read_deep_mean<Bfloat16> : read_deep_mean<float>;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kRowsPerTask)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t slot = row_slots[i];
    wide[i] = slot < 0 ? 0.0f : wide_mean(slots, slot, means);
    read_deep(slots, initial, row_ids[i], slot, history, means, scratch + 3 * width * i, deep + width * i);
  }
}

}  // namespace host_tables::ISA
