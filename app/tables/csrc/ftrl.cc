#include "ftrl.h"

#include <cmath>

namespace host_tables::ISA {
namespace {

// Ids of a task: their state is gathered into arrays of this length, so that the step vectorizes.
constexpr std::int64_t kBlock = 128;

struct Block {
  float gradient[kBlock], row[kBlock], accumulator[kBlock], linear[kBlock];
};

float sum_of_positions(const HostTablesBatch& batch, std::int64_t u, const float* gradient, float scale) {
  const std::uint32_t num_fields = static_cast<std::uint32_t>(batch.num_fields);
  float sum = 0.0f;
  for (std::int32_t i = batch.offsets[u]; i < batch.offsets[u + 1]; ++i) {
    sum += gradient[static_cast<std::uint32_t>(batch.positions[i]) / num_fields] * scale;
  }
  return sum;
}

void step(Block& block, std::int64_t count, const HostTablesFtrl& options) {
  const float twice_l2 = 2.0f * options.l2;
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = block.gradient[i];
    const float new_accumulator = block.accumulator[i] + gradient * gradient;
    const float new_root = std::sqrt(new_accumulator);
    const float rate_change = (new_root - std::sqrt(block.accumulator[i])) / options.learning_rate;
    const float linear = block.linear[i] + (gradient - rate_change * block.row[i]);
    const float sign = static_cast<float>(linear > 0.0f) - static_cast<float>(linear < 0.0f);
    const float shrunk = (sign * options.l1 - linear) / (new_root / options.learning_rate + twice_l2);
    block.linear[i] = linear;
    block.accumulator[i] = new_accumulator;
    block.row[i] = std::fabs(linear) > options.l1 ? shrunk : 0.0f;
  }
}

void update_block(const Slots& slots, const HostTablesBatch& batch, const std::int32_t* row_slots,
                  const float* gradient, float scale, const HostTablesFtrl& options, std::int64_t first,
                  std::int64_t count) {
  Block block;
  for (std::int64_t i = 0; i < count; ++i) {
    const float* const state = wide_state(slots, row_slots[first + i]);
    block.row[i] = state[0];
    block.accumulator[i] = state[1];
    block.linear[i] = state[2];
    block.gradient[i] = sum_of_positions(batch, first + i, gradient, scale);
  }
  step(block, count, options);
  for (std::int64_t i = 0; i < count; ++i) {
    float* const state = wide_state(slots, row_slots[first + i]);
    state[0] = block.row[i];
    state[1] = block.accumulator[i];
    state[2] = block.linear[i];
  }
}

}  // namespace

void ftrl(const Slots& slots, const HostTablesBatch& batch, const std::int32_t* row_slots, const float* gradient,
          float scale, const HostTablesFtrl& options, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (std::int64_t first = 0; first < batch.num_unique; first += kBlock) {
    const std::int64_t count = batch.num_unique - first < kBlock ? batch.num_unique - first : kBlock;
    update_block(slots, batch, row_slots, gradient, scale, options, first, count);
  }
}

}  // namespace host_tables::ISA
