// The running means of rows: RunningMean of app/tables/optimizers.py in C++, bit for bit.

#include "kernels/kernels.h"

#include <cstring>

#include "kernels/initial_rows.h"
#include "kernels/missed_steps.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kRowsPerTask = 256;
constexpr std::int64_t kRowsAhead = 6;

// `mean` [width] of `row`, which stood still, from step `from` to means.step.
void still_mean(const HostTablesMeans& means, const float* row, float* mean, std::int64_t width, std::int64_t from) {
  const float kept = kept_distance(means, from, means.step);
  for (std::int64_t i = 0; i < width; ++i) mean[i] = row[i] + kept * (mean[i] - row[i]);
}

float* deep_mean(const Slots& slots, std::int32_t slot) {
  return deep_state(slots, slot) + (slots.layout.deep_states - 1) * slots.layout.embedding_dim;
}

float* deep_mean_step(const Slots& slots, std::int32_t slot) {
  return deep_scalar(slots, slot) + slots.layout.deep_scalars - 1;
}

float wide_mean(const Slots& slots, std::int32_t slot, const HostTablesMeans& means) {
  const float* const state = wide_state(slots, slot);
  const std::int64_t place = slots.layout.wide_states - 2;
  float mean = state[place];
  still_mean(means, state, &mean, 1, step_at(state + place + 1));
  return mean;
}

void advance_row(const Slots& slots, std::int32_t slot, const HostTablesHistory* history, const HostTablesMeans& means) {
  const std::int64_t width = slots.layout.embedding_dim;
  const auto step = static_cast<std::int32_t>(means.step);
  float* const wide = wide_state(slots, slot) + slots.layout.wide_states - 2;
  wide[0] = wide_mean(slots, slot, means);
  set_step_at(wide + 1, step);
  float *const row = deep_state(slots, slot), *const mean = deep_mean(slots, slot);
  if (history == nullptr) {
    float* const mean_step = deep_mean_step(slots, slot);
    still_mean(means, row, mean, width, step_at(mean_step));
    set_step_at(mean_step, step);
  } else {
    catch_up_with_mean(row, row + width, row + 2 * width, mean, width, last_step(slots, slot), *history, means);
    set_last_step(slots, slot, step);
  }
}

// The mean of a deep row into `mean` [D]; `scratch` [3 * D] is used with `adam`.
void read_deep_mean(const Slots& slots, const InitialValues& initial, std::int64_t row_id, std::int32_t slot,
                    const HostTablesHistory* history, const HostTablesMeans& means, float* scratch, float* mean) {
  const std::int64_t width = slots.layout.embedding_dim;
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  if (history == nullptr) {
    if (slot < 0) return initial_row(initial, row_id, width, mean);
    std::memcpy(mean, deep_mean(slots, slot), bytes);
    return still_mean(means, deep_state(slots, slot), mean, width, step_at(deep_mean_step(slots, slot)));
  }
  if (slot < 0) {
    initial_row(initial, row_id, width, scratch);
    std::memset(scratch + width, 0, 2 * bytes);
    std::memset(mean, 0, bytes);
  } else {
    std::memcpy(scratch, deep_state(slots, slot), 3 * bytes);
    std::memcpy(mean, deep_mean(slots, slot), bytes);
  }
  const std::int64_t last = slot < 0 ? 0 : last_step(slots, slot);
  catch_up_with_mean(scratch, scratch + width, scratch + 2 * width, mean, width, last, *history, means);
}

}  // namespace

void advance_means(const Slots& slots, const std::int32_t* row_slots, std::int64_t count,
                   const HostTablesHistory* history, const HostTablesMeans& means, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kRowsPerTask)
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) {
      const std::int32_t ahead = row_slots[i + kRowsAhead];
      prefetch_row(deep_state(slots, ahead), slots.layout.deep_states * slots.layout.embedding_dim);
      __builtin_prefetch(wide_state(slots, ahead));
    }
    advance_row(slots, row_slots[i], history, means);
  }
}

void read_means(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids,
                const std::int32_t* row_slots, std::int64_t count, const HostTablesHistory* history,
                const HostTablesMeans& means, float* scratch, float* deep, float* wide, int num_threads) {
  const std::int64_t width = slots.layout.embedding_dim;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, kRowsPerTask)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t slot = row_slots[i];
    wide[i] = slot < 0 ? 0.0f : wide_mean(slots, slot, means);
    read_deep_mean(slots, initial, row_ids[i], slot, history, means, scratch + 3 * width * i, deep + width * i);
  }
}

}  // namespace host_tables::ISA
