#include "kernels/kernels.h"

#include "kernels/optimizer_steps.h"
#include "kernels/positions.h"

namespace host_tables::ISA {
namespace {

// Number of ids per task. Their states are gathered into arrays of this length, so that the step vectorizes.
constexpr std::int64_t kBlock = 128;

constexpr std::int64_t kMostStates = 4;
constexpr std::int64_t kIdsAhead = 16;

struct Block {
  float sum[kBlock], states[kMostStates][kBlock];  // states[0] are the rows
};

// Take the step of a block. The ids of the block are passed as if they were the columns of one row.
void take_step(Block& block, std::int64_t count, HostTablesOptimizer optimizer, float scale,
               const HostTablesStep& step) {
  float* const rows = block.states[0];
  switch (optimizer) {
    case HOST_TABLES_SGD:
      return sgd_columns(rows, block.sum, count, scale, step);
    case HOST_TABLES_ADAGRAD:
      return adagrad_columns(rows, block.states[1], block.sum, count, scale, step);
    case HOST_TABLES_SCHEDULED_FTRL:
      return scheduled_ftrl_columns(rows, block.states[1], block.states[2], block.states[3], block.sum, count, scale,
                                    step);
    default:
      return ftrl_columns(rows, block.states[1], block.states[2], block.sum, count, scale, step);
  }
}

void update_block(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                  const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                  std::int64_t first, std::int64_t count) {
  Block block;
  const std::int64_t num_states = slots.layout.wide_states - (slots.layout.keeps_means ? 2 : 0);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kIdsAhead < count) __builtin_prefetch(wide_state(slots, row_slots[first + i + kIdsAhead]), 1);
    const float* const state = wide_state(slots, row_slots[first + i]);
    for (std::int64_t k = 0; k < num_states; ++k) block.states[k][i] = state[k];
    block.sum[i] = sum_wide_positions(batch, first + i, gradient);
  }
  take_step(block, count, optimizer, scale, step);
  for (std::int64_t i = 0; i < count; ++i) {
    float* const state = wide_state(slots, row_slots[first + i]);
    for (std::int64_t k = 0; k < num_states; ++k) state[k] = block.states[k][i];
  }
}

}  // namespace

void update_wide(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                 const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                 int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (std::int64_t first = 0; first < batch.num_unique; first += kBlock) {
    const std::int64_t count = batch.num_unique - first < kBlock ? batch.num_unique - first : kBlock;
    update_block(slots, optimizer, batch, row_slots, gradient, scale, step, first, count);
  }
}

}  // namespace host_tables::ISA
