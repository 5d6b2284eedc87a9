// Let rows that lie in plain arrays, as in a checkpoint, take the steps that they missed, bit for bit as
// StepHistory.catch_up in app/tables/optimizers.py does.

#include "kernels/kernels.h"

#include <algorithm>
#include <cstring>

#include "kernels/late_rows.h"

namespace host_tables::ISA {
namespace {

// Process rows `begin` ... `end` - 1: at most kIdsPerTask rows of at most kNarrow columns. Their states are copied
// side by side, and several rows are processed together.
void catch_up_narrow(const HostTablesRowArrays& arrays, std::int64_t begin, std::int64_t end,
                     const HostTablesHistory& history) {
  const std::int64_t width = arrays.width;
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(float);
  alignas(64) float states[kIdsPerTask][3 * kNarrow];
  float* const of_rows[] = {arrays.rows, arrays.first_moments, arrays.second_moments};
  LateRow late[kIdsPerTask];
  for (std::int64_t i = begin; i < end; ++i) {
    float* const state = states[i - begin];
    for (int array = 0; array < 3; ++array) std::memcpy(state + array * width, of_rows[array] + i * width, bytes);
    const std::int64_t last = std::max(arrays.last_steps[i], 0);
    const std::int64_t missed = std::clamp<std::int64_t>(history.step - last, 0, history.most_exact_steps);
    late[i - begin] = {state, state, last, missed};
  }
  catch_up_rows(late, end - begin, width, history);
  for (std::int64_t i = begin; i < end; ++i) {
    for (int array = 0; array < 3; ++array) {
      std::memcpy(of_rows[array] + i * width, states[i - begin] + array * width, bytes);
    }
  }
}

}  // namespace

void catch_up_arrays(const HostTablesRowArrays& arrays, const HostTablesHistory& history, const HostTablesMeans* means,
                     int num_threads) {
  const std::int64_t width = arrays.width;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (std::int64_t begin = 0; begin < arrays.count; begin += kIdsPerTask) {
    const std::int64_t end = std::min(begin + kIdsPerTask, arrays.count);
    if (means == nullptr && width <= kNarrow) {
      catch_up_narrow(arrays, begin, end, history);
      continue;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      float *const row = arrays.rows + i * width, *const first = arrays.first_moments + i * width,
                  *const second = arrays.second_moments + i * width;
      if (means == nullptr) {
        catch_up(row, first, second, width, arrays.last_steps[i], history);
      } else {
        catch_up_with_mean(row, first, second, arrays.means + i * width, width, arrays.last_steps[i], history, *means);
      }
    }
  }
}

}  // namespace host_tables::ISA
