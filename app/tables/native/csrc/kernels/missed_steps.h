// Let a row take the `adam` steps that it missed, because their batches did not have the row. StepHistory.catch_up in
// app/tables/optimizers.py does the same.

#ifndef MISSED_STEPS_H_
#define MISSED_STEPS_H_

#include <cmath>
#include <cstdint>

#include "host_tables.h"

namespace host_tables {

constexpr std::int64_t kMissedColumns = 64;   // columns at a time, so that their state stays in the first-level cache
constexpr float kSmallestMoment = 0x1p-100f;  // SMALLEST_MOMENT in optimizers.py
constexpr std::int64_t kFirstSegment = 32;    // FIRST_SEGMENT in optimizers.py

// Take one step with the gradient l2_coef * row, for `width` columns.
static inline __attribute__((always_inline)) void missed_step(float* __restrict row, float* __restrict first,
                                                              float* __restrict second, std::int64_t width,
                                                              float rate, float epsilon,
                                                              const HostTablesHistory& history) {
  const float beta1 = history.beta1, beta2 = history.beta2, l2_coef = history.l2_coef;
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = l2_coef * row[i];
    const float moment = beta1 * first[i] + rest1 * gradient;
    first[i] = std::fabs(moment) < kSmallestMoment ? 0.0f : moment;
    second[i] = beta2 * second[i] + rest2 * (gradient * gradient);
    row[i] -= rate * first[i] / (std::sqrt(second[i]) + epsilon);
  }
}

// Take the steps from `from` + 1 on as one segment: `length` steps, or as many as are left. Return the last step
// taken.
static inline __attribute__((always_inline)) std::int64_t take_segment(float* __restrict row, float* __restrict first,
                                                                       float* __restrict second, std::int64_t width,
                                                                       std::int64_t from, std::int64_t length,
                                                                       const HostTablesHistory& history) {
  const std::int64_t steps = length < history.step - from ? length : history.step - from;
  const float half = history.beta2_powers[steps / 2], whole = history.beta2_powers[steps];
  const float rate_sum = static_cast<float>(history.rate_sums[from + steps] - history.rate_sums[from]);
  const float l2_coef = history.l2_coef, epsilon = history.epsilons[from + steps];
  for (std::int64_t i = 0; i < width; ++i) {
    const float pull = l2_coef * row[i];
    const float middle = half * second[i] + (1.0f - half) * (pull * pull);
    const float share = l2_coef * rate_sum / (std::sqrt(middle) + epsilon);
    row[i] /= 1.0f + share + 0.5f * share * share;
    first[i] = l2_coef * row[i];
    second[i] = whole * second[i] + (1.0f - whole) * (first[i] * first[i]);
  }
  return from + steps;
}

// Take the steps from `from` + 1 to history.step, many steps at a time (a segment).
static inline void remaining_steps(float* __restrict row, float* __restrict first, float* __restrict second,
                                   std::int64_t width, std::int64_t from, const HostTablesHistory& history) {
  for (std::int64_t length = kFirstSegment; from < history.step; length += length / 2) {
    from = take_segment(row, first, second, width, from, length, history);
  }
}

// Include the row after a step in its mean (RunningMean.include in app/tables/optimizers.py). `rate` is that of the
// step.
static inline __attribute__((always_inline)) void include(const float* __restrict row, float* __restrict mean,
                                                          std::int64_t width, float rate) {
  for (std::int64_t i = 0; i < width; ++i) mean[i] += rate * (row[i] - mean[i]);
}

// Return the factor by which a row's distance from its mean shrinks over the steps from + 1 ... to, in which the row
// does not change (the factor f of RunningMean in app/tables/optimizers.py).
static inline float kept_distance(const HostTablesMeans& means, std::int64_t from, std::int64_t to) {
  if (from <= 0 || to <= 0) return 0.0f;
  return static_cast<float>(means.powers[to - from] * (1.0 - means.powers[from]) / (1.0 - means.powers[to]));
}

// Bring `width` columns of a row from its last step `last` to step history.step.
static inline void catch_up(float* row, float* first, float* second, std::int64_t width, std::int64_t last,
                            const HostTablesHistory& history) {
  if (last < 0) last = 0;  // Python rejects negative last steps. One would read before the start of the history.
  const std::int64_t most = last + history.most_exact_steps;
  const std::int64_t end = history.step < most ? history.step : most;
  for (std::int64_t begin = 0; begin < width; begin += kMissedColumns) {
    const std::int64_t columns = width - begin < kMissedColumns ? width - begin : kMissedColumns;
    float* const row_part = row + begin;
    float* const first_part = first + begin;
    float* const second_part = second + begin;
    if (columns % 16 == 0) {  // A constant width lets the compiler leave out the loop for remaining columns.
      for (std::int64_t step = last + 1; step <= end; ++step) {
        for (std::int64_t i = 0; i < columns; i += 16) {
          missed_step(row_part + i, first_part + i, second_part + i, 16, history.rates[step], history.epsilons[step],
                      history);
        }
      }
    } else {
      for (std::int64_t step = last + 1; step <= end; ++step) {
        missed_step(row_part, first_part, second_part, columns, history.rates[step], history.epsilons[step], history);
      }
    }
    if (end < history.step) remaining_steps(row_part, first_part, second_part, columns, end, history);
  }
}

// Bring a row and its running mean to step history.step. On entry, `row` is as it was after step `last`, and `mean` as
// it was before that step.
static inline void catch_up_with_mean(float* row, float* first, float* second, float* mean, std::int64_t width,
                                      std::int64_t last, const HostTablesHistory& history,
                                      const HostTablesMeans& means) {
  if (last < 0) last = 0;
  const std::int64_t most = last + history.most_exact_steps;
  const std::int64_t end = history.step < most ? history.step : most;
  const float kept = kept_distance(means, end, history.step);
  for (std::int64_t begin = 0; begin < width; begin += kMissedColumns) {
    const std::int64_t columns = width - begin < kMissedColumns ? width - begin : kMissedColumns;
    float *const r = row + begin, *const f = first + begin, *const s = second + begin, *const m = mean + begin;
    include(r, m, columns, means.rates[last]);
    for (std::int64_t step = last + 1; step <= end; ++step) {
      missed_step(r, f, s, columns, history.rates[step], history.epsilons[step], history);
      include(r, m, columns, means.rates[step]);
    }
    if (end == history.step) continue;
    remaining_steps(r, f, s, columns, end, history);
    for (std::int64_t i = 0; i < columns; ++i) m[i] = r[i] + kept * (m[i] - r[i]);
  }
}

}  // namespace host_tables

#endif  // MISSED_STEPS_H_
