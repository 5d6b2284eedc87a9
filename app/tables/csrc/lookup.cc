#include "lookup.h"

#include "initial_rows.h"
#include "stream.h"

namespace host_tables::ISA {
namespace {

constexpr std::int64_t kRowsPerTask = 32;    // batch rows; small enough to even out threads that were held up
constexpr std::int64_t kPrefetchAhead = 12;  // positions

// Everything a task reads and writes.
struct Lookup {
  const Slots& slots;
  const InitialValues& initial;
  const HostTablesBatch& batch;
  const std::int32_t* row_slots;
  float* deep;
  float* wide;
  double* squared_norms;
  bool streams;
};

float* deep_output(const Lookup& lookup, std::int64_t position) {
  return lookup.deep + position * lookup.slots.embedding_dim;
}

// Σ x² in float64, in eight lanes whatever the instruction set: the same bits everywhere.
double squared_norm(const float* row, std::int64_t width) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = row[column + lane];
      lanes[lane] += value * value;
    }
  }
  for (; column < width; ++column) lanes[column % kLanes] += static_cast<double>(row[column]) * row[column];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// The first position of an untouched id holds its initial row, from where the others are copied.
const float* deep_source(const Lookup& lookup, std::int32_t u) {
  const std::int32_t slot = lookup.row_slots[u];
  if (slot >= 0) return deep_state(lookup.slots, slot);
  return deep_output(lookup, lookup.batch.positions[lookup.batch.offsets[u]]);
}

void compute_untouched_rows(const Lookup& lookup) {
#pragma omp for schedule(static)
  for (std::int64_t u = 0; u < lookup.batch.num_unique; ++u) {
    if (lookup.row_slots[u] >= 0) continue;
    float* const row = deep_output(lookup, lookup.batch.positions[lookup.batch.offsets[u]]);
    initial_row(lookup.initial, lookup.batch.values[u], lookup.slots.embedding_dim, row);
  }
}

void prefetch_source(const Lookup& lookup, std::int32_t u) {
  const std::int32_t slot = lookup.row_slots[u];
  if (slot < 0) return;
  prefetch_row(deep_state(lookup.slots, slot), lookup.slots.embedding_dim);
  __builtin_prefetch(wide_state(lookup.slots, slot));
}

void copy_row(const Lookup& lookup, const float* source, float* target) {
  const std::int64_t width = lookup.slots.embedding_dim;
  if (source == target) return;
  if (lookup.streams) {
    stream_row(source, width, target);
  } else {
    std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(float));
  }
}

// How many ids have their first position before `position`: ids are numbered by it.
std::int64_t num_seen_before(const HostTablesBatch& batch, std::int64_t position) {
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

void look_up_rows(const Lookup& lookup, std::int64_t begin_row, std::int64_t end_row) {
  const HostTablesBatch& batch = lookup.batch;
  std::int64_t position = begin_row * batch.num_fields;
  const std::int64_t last = batch.num_rows * batch.num_fields - 1;
  std::int64_t num_seen = num_seen_before(batch, position);
  for (std::int64_t row = begin_row; row < end_row; ++row) {
    float wide_sum = 0.0f;
    for (const std::int64_t end = position + batch.num_fields; position < end; ++position) {
      const std::int64_t ahead = position + kPrefetchAhead < last ? position + kPrefetchAhead : last;
      prefetch_source(lookup, batch.inverse[ahead]);
      const std::int32_t u = batch.inverse[position];
      const float* const source = deep_source(lookup, u);
      if (u == num_seen) {
        lookup.squared_norms[u] = squared_norm(source, lookup.slots.embedding_dim);
        ++num_seen;
      }
      copy_row(lookup, source, deep_output(lookup, position));
      if (lookup.row_slots[u] >= 0) wide_sum += wide_state(lookup.slots, lookup.row_slots[u])[0];
    }
    lookup.wide[row] = wide_sum;
  }
}

}  // namespace

void lookup(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
            const std::int32_t* row_slots, float* deep, float* wide, double* squared_norms, int num_threads) {
  const bool streams = can_stream(deep, slots.embedding_dim);
  const Lookup all = {slots, initial, batch, row_slots, deep, wide, squared_norms, streams};
  const std::int64_t num_tasks = (batch.num_rows + kRowsPerTask - 1) / kRowsPerTask;
#pragma omp parallel num_threads(num_threads)
  {
    compute_untouched_rows(all);
#pragma omp for schedule(dynamic)
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      const std::int64_t end = (task + 1) * kRowsPerTask;
      look_up_rows(all, task * kRowsPerTask, end < batch.num_rows ? end : batch.num_rows);
    }
    end_stream();
  }
}

}  // namespace host_tables::ISA
