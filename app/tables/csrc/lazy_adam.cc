#include "lazy_adam.h"

#include <cmath>
#include <cstring>

#include "stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kMostColumns = 256;    // summed at once; wider rows go over their positions again
constexpr std::int64_t kPrefetchAhead = 8;    // positions
constexpr std::int64_t kRowsAhead = 3;        // unique ids
constexpr std::int64_t kRowCost = 6;          // reading and writing a row's state, in gradient rows read
constexpr std::int64_t kCostPerTask = 1024;   // in gradient rows read: some tens of microseconds

// Everything a task reads and writes.
struct Update {
  const Slots& slots;
  const HostTablesBatch& batch;
  const std::int32_t* row_slots;
  const float* gradient;
  float scale;
  const HostTablesLazyAdam& options;
};

// The pointers do not overlap: told so, the compiler vectorizes.
void add(const float* __restrict gradient, std::int64_t width, float* __restrict sum) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += gradient[i];
}

void step(float* __restrict row, float* __restrict first_moment, float* __restrict second_moment,
          const float* __restrict sum, std::int64_t width, float scale, const HostTablesLazyAdam& options) {
  const float rest1 = 1.0f - options.beta1, rest2 = 1.0f - options.beta2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = sum[i] * scale + options.l2_coef * row[i];
    first_moment[i] = options.beta1 * first_moment[i] + rest1 * gradient;
    second_moment[i] = options.beta2 * second_moment[i] + rest2 * (gradient * gradient);
    row[i] -= options.corrected_rate * first_moment[i] / (std::sqrt(second_moment[i]) + options.epsilon);
  }
}

// Columns begin … begin + width - 1 of the row of unique id u.
void update_columns(const Update& update, std::int64_t u, std::int64_t begin, std::int64_t width) {
  const std::int64_t embedding_dim = update.slots.embedding_dim;
  const std::int32_t* const positions = update.batch.positions;
  const std::int64_t last = update.batch.num_rows * update.batch.num_fields - 1;
  alignas(64) float sum[kMostColumns];
  std::memset(sum, 0, static_cast<std::size_t>(width) * sizeof(float));
  for (std::int64_t i = update.batch.offsets[u]; i < update.batch.offsets[u + 1]; ++i) {
    const std::int64_t ahead = i + kPrefetchAhead < last ? i + kPrefetchAhead : last;
    prefetch_row(update.gradient + positions[ahead] * embedding_dim + begin, width);
    add(update.gradient + positions[i] * embedding_dim + begin, width, sum);
  }
  float* const row = deep_state(update.slots, update.row_slots[u]) + begin;
  step(row, row + embedding_dim, row + 2 * embedding_dim, sum, width, update.scale, update.options);
}

void update_row(const Update& update, std::int64_t u) {
  const std::int64_t embedding_dim = update.slots.embedding_dim;
  for (std::int64_t begin = 0; begin < embedding_dim; begin += kMostColumns) {
    const std::int64_t width = embedding_dim - begin < kMostColumns ? embedding_dim - begin : kMostColumns;
    update_columns(update, u, begin, width);
  }
}

// An id with more positions than this is split by columns: alone it would keep one thread busy for long
// after the others are done. The order of summation, hence every bit, stays.
std::int64_t most_positions_of_one_thread(const HostTablesBatch& batch, int num_threads) {
  return batch.num_rows * batch.num_fields / (4 * num_threads);
}

std::int64_t num_positions(const HostTablesBatch& batch, std::int64_t u) {
  return batch.offsets[u + 1] - batch.offsets[u];
}

// All threads come here together; each takes some of the columns of each frequent id.
void update_frequent_rows(const Update& update, std::int64_t most_positions) {
  for (std::int64_t u = 0; u < update.batch.num_unique; ++u) {
    if (num_positions(update.batch, u) <= most_positions) continue;
    const std::int64_t embedding_dim = update.slots.embedding_dim;
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t begin = 0; begin < embedding_dim; begin += kLineFloats) {
      update_columns(update, u, begin, embedding_dim - begin < kLineFloats ? embedding_dim - begin : kLineFloats);
    }
  }
}

std::int64_t cost_before(const HostTablesBatch& batch, std::int64_t u) { return batch.offsets[u] + kRowCost * u; }

// The first id at or after whose start `cost` has been spent.
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

void update_rows(const Update& update, std::int64_t begin, std::int64_t end, std::int64_t most_positions) {
  for (std::int64_t u = begin; u < end; ++u) {
    if (u + kRowsAhead < end) {
      prefetch_row(deep_state(update.slots, update.row_slots[u + kRowsAhead]), kStatesPerRow * update.slots.embedding_dim);
    }
    if (num_positions(update.batch, u) <= most_positions) update_row(update, u);
  }
}

}  // namespace

void lazy_adam(const Slots& slots, const HostTablesBatch& batch, const std::int32_t* row_slots,
               const float* gradient, float scale, const HostTablesLazyAdam& options, int num_threads) {
  const Update update = {slots, batch, row_slots, gradient, scale, options};
  const std::int64_t most_positions = most_positions_of_one_thread(batch, num_threads);
  const std::int64_t num_tasks = cost_before(batch, batch.num_unique) / kCostPerTask + 1;
#pragma omp parallel num_threads(num_threads)
  {
    update_frequent_rows(update, most_positions);
#pragma omp for schedule(dynamic)
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      const std::int64_t begin = id_at_cost(batch, task * kCostPerTask);
      update_rows(update, begin, id_at_cost(batch, (task + 1) * kCostPerTask), most_positions);
    }
  }
}

}  // namespace host_tables::ISA
