// Take one step of each optimizer on some columns of a row, bit for bit as app/tables/optimizers.py does.

#ifndef OPTIMIZER_STEPS_H_
#define OPTIMIZER_STEPS_H_

#include <cmath>
#include <cstdint>

#include "storage/slots.h"

namespace host_tables {

// Input and output of one step. The arrays of a row must not overlap.
struct Columns {
  float* row;  // first of the columns; each further state is `stride` floats behind
  std::int64_t stride;
  const float* sum;    // sum of the gradients of the row's positions
  std::int64_t width;  // number of columns
  std::int32_t slot;
  const float* caught_up;  // as `row`, after step history->step; only read if the row has missed steps
  std::int64_t caught_up_stride;
};

struct StepInput {
  const Slots& slots;
  float scale;
  const HostTablesStep& options;
  const HostTablesHistory* history;
};

#define STEP_FUNCTION static inline __attribute__((always_inline)) void

static inline __attribute__((always_inline)) float gradient_of(float sum, float row, float scale,
                                                               const HostTablesStep& options) {
  return sum * scale + options.l2_coef * row;
}

STEP_FUNCTION adam_columns(float* __restrict row, float* __restrict first_moment, float* __restrict second_moment,
                           const float* __restrict sum, std::int64_t width, float scale,
                           const HostTablesStep& options) {
  const float rest1 = 1.0f - options.beta1, rest2 = 1.0f - options.beta2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = gradient_of(sum[i], row[i], scale, options);
    first_moment[i] = options.beta1 * first_moment[i] + rest1 * gradient;
    second_moment[i] = options.beta2 * second_moment[i] + rest2 * (gradient * gradient);
    row[i] -= options.learning_rate * first_moment[i] / (std::sqrt(second_moment[i]) + options.epsilon);
  }
}

STEP_FUNCTION adagrad_columns(float* __restrict row, float* __restrict accumulator, const float* __restrict sum,
                              std::int64_t width, float scale, const HostTablesStep& options) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = gradient_of(sum[i], row[i], scale, options);
    accumulator[i] += gradient * gradient;
    row[i] -= options.learning_rate * gradient / (std::sqrt(accumulator[i]) + options.epsilon);
  }
}

STEP_FUNCTION sgd_columns(float* __restrict row, const float* __restrict sum, std::int64_t width, float scale,
                          const HostTablesStep& options) {
  for (std::int64_t i = 0; i < width; ++i) {
    row[i] -= options.learning_rate * gradient_of(sum[i], row[i], scale, options);
  }
}

// Smallest learning rate of FTRL, which divides by it. With a lower rate the row stays unchanged, since no weight
// would move noticeably.
constexpr float kLeastFtrlRate = 0x1p-40f;

STEP_FUNCTION ftrl_columns(float* __restrict row, float* __restrict accumulator, float* __restrict linear,
                           const float* __restrict sum, std::int64_t width, float scale,
                           const HostTablesStep& options) {
  if (options.learning_rate < kLeastFtrlRate) return;
  const float twice_l2 = 2.0f * options.l2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = gradient_of(sum[i], row[i], scale, options);
    const float new_accumulator = accumulator[i] + gradient * gradient;
    const float new_root = std::sqrt(new_accumulator);
    const float rate_change = (new_root - std::sqrt(accumulator[i])) / options.learning_rate;
    const float new_linear = linear[i] + (gradient - rate_change * row[i]);
    const float sign = static_cast<float>(new_linear > 0.0f) - static_cast<float>(new_linear < 0.0f);
    const float shrunk = (sign * options.l1 - new_linear) / (new_root / options.learning_rate + twice_l2);
    linear[i] = new_linear;
    accumulator[i] = new_accumulator;
    row[i] = std::fabs(new_linear) > options.l1 ? shrunk : 0.0f;
  }
}

STEP_FUNCTION scheduled_ftrl_columns(float* __restrict row, float* __restrict accumulator, float* __restrict linear,
                                     float* __restrict last_rate, const float* __restrict sum, std::int64_t width,
                                     float scale, const HostTablesStep& options) {
  if (options.learning_rate < kLeastFtrlRate) return;
  const float rate = options.learning_rate, twice_l2 = 2.0f * options.l2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = gradient_of(sum[i], row[i], scale, options);
    const float new_accumulator = accumulator[i] + gradient * gradient;
    const float new_root = std::sqrt(new_accumulator);
    const float last = last_rate[i] > 0.0f ? last_rate[i] : rate;
    const float change = new_root / rate - std::sqrt(accumulator[i]) / last;
    const float new_linear = linear[i] + (gradient - change * row[i]);
    const float sign = static_cast<float>(new_linear > 0.0f) - static_cast<float>(new_linear < 0.0f);
    const float shrunk = (sign * options.l1 - new_linear) / (new_root / rate + twice_l2);
    linear[i] = new_linear;
    accumulator[i] = new_accumulator;
    last_rate[i] = rate;
    row[i] = std::fabs(new_linear) > options.l1 ? shrunk : 0.0f;
  }
}

// Base of optimizers that have nothing to do after the last columns of a row.
struct StepWithoutEnd {
  static constexpr bool kEndsRow = false;
  STEP_FUNCTION end_row(const StepInput&, std::int32_t) {}
};

// Each optimizer defines the number of its states of D values, a step on some columns, and the work to do after all
// columns of a row have taken their step.
struct LazyAdam : StepWithoutEnd {
  static constexpr int kStates = 3;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    adam_columns(c.row, c.row + c.stride, c.row + 2 * c.stride, c.sum, c.width, input.scale, input.options);
  }
};

struct WholeTableAdam {
  static constexpr int kStates = 3;
  static constexpr bool kEndsRow = true;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    if (last_step(input.slots, c.slot) != input.history->step) {
      for (int state = 0; state < kStates; ++state) {
        const float* const caught_up = c.caught_up + state * c.caught_up_stride;
        for (std::int64_t i = 0; i < c.width; ++i) c.row[state * c.stride + i] = caught_up[i];
      }
    }
    LazyAdam::take(input, c);
  }
  STEP_FUNCTION end_row(const StepInput& input, std::int32_t slot) {
    set_last_step(input.slots, slot, static_cast<std::int32_t>(input.history->step + 1));
  }
};

struct Adagrad : StepWithoutEnd {
  static constexpr int kStates = 2;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    adagrad_columns(c.row, c.row + c.stride, c.sum, c.width, input.scale, input.options);
  }
};

struct Sgd : StepWithoutEnd {
  static constexpr int kStates = 1;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    sgd_columns(c.row, c.sum, c.width, input.scale, input.options);
  }
};

struct Ftrl : StepWithoutEnd {
  static constexpr int kStates = 3;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    ftrl_columns(c.row, c.row + c.stride, c.row + 2 * c.stride, c.sum, c.width, input.scale, input.options);
  }
};

struct ScheduledFtrl : StepWithoutEnd {
  static constexpr int kStates = 4;
  STEP_FUNCTION take(const StepInput& input, const Columns& c) {
    scheduled_ftrl_columns(c.row, c.row + c.stride, c.row + 2 * c.stride, c.row + 3 * c.stride, c.sum, c.width,
                           input.scale, input.options);
  }
};

// Row-wise optimizers read a row twice. The first pass sums the squares of its gradient in this number of lanes.
constexpr std::int64_t kSquareLanes = 16;

static inline void add_squares(const float* sum, const float* row, std::int64_t width, float scale,
                               const HostTablesStep& options, float* lanes) {
  for (std::int64_t begin = 0; begin < width; begin += kSquareLanes) {
    const std::int64_t columns = width - begin < kSquareLanes ? width - begin : kSquareLanes;
    for (std::int64_t lane = 0; lane < columns; ++lane) {
      const float gradient = gradient_of(sum[begin + lane], row[begin + lane], scale, options);
      lanes[lane] += gradient * gradient;
    }
  }
}

// Each row-wise optimizer defines the number of its states of D values, a function that updates the row's scalar and
// the step's options from the mean of the squares, and the step on some columns.
struct RowwiseAdagrad {
  static constexpr int kStates = 1;
  static inline void begin_row(float* accumulator, float mean_square, HostTablesStep& options) {
    *accumulator += mean_square;
    options.learning_rate /= std::sqrt(*accumulator) + options.epsilon;
  }
  STEP_FUNCTION take(const Columns& c, float scale, const HostTablesStep& options) {
    sgd_columns(c.row, c.sum, c.width, scale, options);
  }
};

struct PartialRowwiseAdam {
  static constexpr int kStates = 2;
  static inline void begin_row(float* second_moment, float mean_square, HostTablesStep& options) {
    *second_moment = options.beta2 * *second_moment + (1.0f - options.beta2) * mean_square;
    options.epsilon += std::sqrt(*second_moment);
  }
  STEP_FUNCTION take(const Columns& c, float scale, const HostTablesStep& options) {
    float* __restrict const row = c.row;
    float* __restrict const first_moment = c.row + c.stride;
    const float rest1 = 1.0f - options.beta1;
    for (std::int64_t i = 0; i < c.width; ++i) {
      first_moment[i] = options.beta1 * first_moment[i] + rest1 * gradient_of(c.sum[i], row[i], scale, options);
      row[i] -= options.learning_rate * first_moment[i] / options.epsilon;
    }
  }
};

}  // namespace host_tables

#endif  // OPTIMIZER_STEPS_H_
