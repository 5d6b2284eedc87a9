#include "kernels/kernels.h"

#include "kernels/bfloat16.h"
#include "kernels/optimizer_steps.h"
#include "kernels/late_rows.h"
#include "kernels/positions.h"
#include "kernels/stream.h"

namespace host_tables::ISA {
namespace {

// Columns that are summed together. A wider row reads its positions several times.
constexpr std::int64_t kMostColumns = 256;
constexpr std::int64_t kRowsAhead = 3;       // number of distinct ids to prefetch ahead
constexpr std::int64_t kRowCost = 6;         // cost of reading and writing the state of a row, in gradient rows read
constexpr std::int64_t kCostPerTask = 1024;  // cost of a task in gradient rows read: some tens of microseconds

// The inputs of all tasks.
struct Update {
  const Slots& slots;
  const HostTablesBatch& batch;
  const std::int32_t* row_slots;
  const float* gradient;
  StepInput input;
  float* caught_up;            // [U, 3 * D], used with a history
  std::uint64_t rounding_key;  // used for bfloat16
};

inline std::uint32_t word_of(const Update& update, std::int64_t u) {
  return row_word(update.rounding_key, update.batch.values[u]);
}

void sum_columns(const Update& update, std::int64_t u, std::int64_t begin, std::int64_t width, float* sum) {
  sum_positions(update.batch, u, update.gradient, update.slots.layout.embedding_dim, begin, width, sum);
}

// Update columns begin ... begin + width - 1 of distinct id u. If kWidth is given, that is the whole row.
template <typename Step, typename Value, std::int64_t kWidth = kAnyWidth>
inline void update_columns(const Update& update, std::int64_t u, std::int64_t begin, std::int64_t width) {
  constexpr std::int64_t kMost = kWidth == kAnyWidth ? kMostColumns : kWidth;
  alignas(64) float sum[kMost];
  std::int64_t embedding_dim = kWidth;
  if constexpr (kWidth == kAnyWidth) {
    embedding_dim = update.slots.layout.embedding_dim;
    sum_columns(update, u, begin, width, sum);
  } else {
    sum_narrow_positions<kWidth>(update.batch, u, update.gradient, sum);
  }
  const std::int32_t slot = update.row_slots[u];
  const float* const caught_up =
      update.caught_up == nullptr ? nullptr : update.caught_up + u * 3 * embedding_dim + begin;
  change_states<Value, Step::kStates, kMost>(
      update.slots, slot, word_of(update, u), begin, width, embedding_dim,
      [&](float* states, std::int64_t stride) {
        Step::take(update.input, {states, stride, sum, width, slot, caught_up, embedding_dim});
      });
}

std::int64_t columns_from(std::int64_t begin, std::int64_t embedding_dim, std::int64_t most) {
  return embedding_dim - begin < most ? embedding_dim - begin : most;
}

template <typename Step, typename Value, std::int64_t kWidth>
void update_row(const Update& update, std::int64_t u) {
  const std::int64_t embedding_dim = update.slots.layout.embedding_dim;
  if constexpr (kWidth != kAnyWidth) {
    update_columns<Step, Value, kWidth>(update, u, 0, kWidth);
  } else {
    for (std::int64_t begin = 0; begin < embedding_dim; begin += kMostColumns) {
      update_columns<Step, Value>(update, u, begin, columns_from(begin, embedding_dim, kMostColumns));
    }
  }
  Step::end_row(update.input, update.row_slots[u]);
}

// Return the number of positions above which an id counts as frequent: its columns are then divided among all threads.
// A single thread would still be busy with it long after the others have finished. The order in which each column is
// summed does not change, so the results have the same bits.
std::int64_t most_positions_of_one_thread(const HostTablesBatch& batch, int num_threads) {
  return batch.num_positions / (4 * num_threads);
}

std::int64_t num_positions(const HostTablesBatch& batch, std::int64_t u) {
  return batch.offsets[u + 1] - batch.offsets[u];
}

// Update the frequent ids. All threads of the parallel region must call this; each takes some columns of each id.
template <typename Step, typename Value>
void update_frequent_rows(const Update& update, std::int64_t most_positions) {
  for (std::int64_t u = 0; u < update.batch.num_unique; ++u) {
    if (num_positions(update.batch, u) <= most_positions) continue;
    const std::int64_t embedding_dim = update.slots.layout.embedding_dim;
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t begin = 0; begin < embedding_dim; begin += kLineFloats) {
      update_columns<Step, Value>(update, u, begin, columns_from(begin, embedding_dim, kLineFloats));
    }
  }
}

template <typename Step>
void end_frequent_rows(const Update& update, std::int64_t most_positions) {
  for (std::int64_t u = 0; u < update.batch.num_unique; ++u) {
    if (num_positions(update.batch, u) > most_positions) Step::end_row(update.input, update.row_slots[u]);
  }
}

std::int64_t cost_before(const HostTablesBatch& batch, std::int64_t u) { return batch.offsets[u] + kRowCost * u; }

// Return the first distinct id such that updating all ids before it costs at least `cost`. The unit of cost is one
// position; each id costs kRowCost besides its positions.
std::int64_t id_at_cost(const HostTablesBatch& batch, std::int64_t cost) {
  std::int64_t low = 0, high = batch.num_unique;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (cost_before(batch, middle) < cost) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Call update_row(u) for each of the distinct ids u = begin ... end - 1 that has at most `most_positions` positions.
template <typename Value, typename UpdateRow>
void update_rows(const Update& update, std::int64_t begin, std::int64_t end, std::int64_t most_positions,
                 const UpdateRow& update_row) {
  const RowLayout& layout = update.slots.layout;
  for (std::int64_t u = begin; u < end; ++u) {
    if (u + kRowsAhead < end) {
      const std::int32_t slot = update.row_slots[u + kRowsAhead];
      prefetch_row(deep_state<Value>(update.slots, slot), layout.deep_states * layout.embedding_dim);
      if (layout.deep_scalars > 0) __builtin_prefetch(deep_scalar(update.slots, slot));
    }
    if (num_positions(update.batch, u) <= most_positions) update_row(u);
  }
}

// Update the ids that are not frequent. All threads of the parallel region must call this. The ids are divided into
// tasks with about equal numbers of positions.
template <typename Value, typename UpdateRow>
void update_all_rows(const Update& update, std::int64_t most_positions, const UpdateRow& update_row) {
  const std::int64_t num_tasks = cost_before(update.batch, update.batch.num_unique) / kCostPerTask + 1;
#pragma omp for schedule(dynamic)
  for (std::int64_t task = 0; task < num_tasks; ++task) {
    const std::int64_t begin = id_at_cost(update.batch, task * kCostPerTask);
    const std::int64_t end = id_at_cost(update.batch, (task + 1) * kCostPerTask);
    update_rows<Value>(update, begin, end, most_positions, update_row);
  }
}

template <typename Step, typename Value>
void run(const Update& update, int num_threads, bool is_caught_up = true) {
  const std::int64_t most_positions = most_positions_of_one_thread(update.batch, num_threads);
#pragma omp parallel num_threads(num_threads)
  {
    if (!is_caught_up) {
      catch_up_batch(update.slots, {}, update.batch, update.row_slots, *update.input.history, update.caught_up);
    }
    update_frequent_rows<Step, Value>(update, most_positions);
    switch (update.slots.layout.embedding_dim) {
      case 8:
        update_all_rows<Value>(update, most_positions, [&](std::int64_t u) { update_row<Step, Value, 8>(update, u); });
        break;
      case 16:
        update_all_rows<Value>(update, most_positions, [&](std::int64_t u) { update_row<Step, Value, 16>(update, u); });
        break;
      default:
        update_all_rows<Value>(update, most_positions, [&](std::int64_t u) { update_row<Step, Value, kAnyWidth>(update, u); });
    }
  }
  if constexpr (Step::kEndsRow) end_frequent_rows<Step>(update, most_positions);
}

// Update a whole row of a row-wise optimizer, whose step needs the squares of all columns. Rows wider than
// kMostColumns sum their positions twice.
template <typename RowwiseStep, typename Value>
void update_whole_row(const Update& update, std::int64_t u) {
  const std::int64_t embedding_dim = update.slots.layout.embedding_dim;
  const std::int32_t slot = update.row_slots[u];
  const Value* const row = deep_state<Value>(update.slots, slot);
  const std::uint32_t word = word_of(update, u);
  const StepInput& input = update.input;
  alignas(64) float sum[kMostColumns], room[kMostColumns];
  float lanes[kSquareLanes] = {}, total = 0.0f;
  for (std::int64_t begin = 0; begin < embedding_dim; begin += kMostColumns) {
    const std::int64_t width = columns_from(begin, embedding_dim, kMostColumns);
    sum_columns(update, u, begin, width, sum);
    add_squares(sum, as_floats(row + begin, width, room), width, input.scale, input.options, lanes);
  }
  for (std::int64_t lane = 0; lane < kSquareLanes; ++lane) total += lanes[lane];
  HostTablesStep options = input.options;
  RowwiseStep::begin_row(deep_scalar(update.slots, slot), total / static_cast<float>(embedding_dim), options);
  for (std::int64_t begin = 0; begin < embedding_dim; begin += kMostColumns) {
    const std::int64_t width = columns_from(begin, embedding_dim, kMostColumns);
    if (embedding_dim > kMostColumns) sum_columns(update, u, begin, width, sum);
    change_states<Value, RowwiseStep::kStates, kMostColumns>(
        update.slots, slot, word, begin, width, embedding_dim,
        [&](float* states, std::int64_t stride) {
          RowwiseStep::take({states, stride, sum, width, slot, nullptr, 0}, input.scale, options);
        });
  }
}

template <typename RowwiseStep, typename Value>
void run_whole_rows(const Update& update, int num_threads) {
  const std::int64_t any = update.batch.num_positions;
#pragma omp parallel num_threads(num_threads)
  update_all_rows<Value>(update, any, [&](std::int64_t u) { update_whole_row<RowwiseStep, Value>(update, u); });
}

template <typename Value>
void choose_step(const Update& update, HostTablesOptimizer optimizer, bool is_caught_up, int num_threads) {
  switch (optimizer) {
    case HOST_TABLES_LAZY_ADAM:
      return run<LazyAdam, Value>(update, num_threads);
    case HOST_TABLES_ADAM:
      return run<WholeTableAdam, Value>(update, num_threads, is_caught_up);
    case HOST_TABLES_ADAGRAD:
      return run<Adagrad, Value>(update, num_threads);
    case HOST_TABLES_ROWWISE_ADAGRAD:
      return run_whole_rows<RowwiseAdagrad, Value>(update, num_threads);
    case HOST_TABLES_PARTIAL_ROWWISE_ADAM:
      return run_whole_rows<PartialRowwiseAdam, Value>(update, num_threads);
    case HOST_TABLES_SGD:
      return run<Sgd, Value>(update, num_threads);
    case HOST_TABLES_FTRL:  // FTRL's states are always float32, because its weights are computed from its sums.
      return run<Ftrl, float>(update, num_threads);
    case HOST_TABLES_SCHEDULED_FTRL:
      return run<ScheduledFtrl, float>(update, num_threads);
  }
}

}  // namespace

void update_deep(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                 const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                 const HostTablesHistory* history, float* caught_up, bool is_caught_up,
                 std::uint64_t rounding_key, int num_threads) {
  const Update update = {slots, batch, row_slots, gradient, {slots, scale, step, history}, caught_up, rounding_key};
  const auto take_step = slots.layout.is_bfloat16 ? choose_step<Bfloat16> : choose_step<float>;
  take_step(update, optimizer, is_caught_up, num_threads);
}

}  // namespace host_tables::ISA
