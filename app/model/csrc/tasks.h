// Shared by the kernels of all layers: threads, tasks and scratch memory.

#ifndef TASKS_H_
#define TASKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "elementwise.h"
#include "product.h"

namespace dense {

inline int num_threads = 1;
inline std::mutex layer_mutex;  // only one layer runs at a time; guards num_threads and scratch memory

// Return memory that later calls use again. Filling fresh pages would cost more than the work itself.
template <typename T>
T* room(std::vector<T>& buffer, std::int64_t size) {
  if (buffer.size() < static_cast<std::size_t>(size)) buffer.resize(static_cast<std::size_t>(size));
  return buffer.data();
}

inline Matrix row_major(void* data, std::int64_t columns) { return {data, columns, 1}; }
inline Matrix transposed(void* data, std::int64_t columns) { return {data, 1, columns}; }

inline std::int64_t num_blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

// Call work() and return its status. Exceptions become a oneDNN status, because they must leave neither a thread nor
// a C function.
template <typename Work>
int run(const Work& work) {
  try {
    return work();
  } catch (const dnnl::error& error) {
    return std::max(1, static_cast<int>(error.status));
  } catch (const std::bad_alloc&) {
    return dnnl_out_of_memory;
  }
}

// Return whether work on `num_values` values justifies waking threads, which takes tens of microseconds.
inline bool is_worth_threads(std::int64_t num_values) { return num_values > 1 << 17; }

// Run task(0) ... task(num_tasks - 1) on all threads, or on this thread if `alone` or if there is one task. Return
// the first error as a number above 0, or 0.
template <typename Task>
int run_tasks(std::int64_t num_tasks, const Task& task, bool alone = false) {
  int first_error = 0;
#pragma omp parallel for schedule(dynamic) num_threads(alone || num_tasks < 2 ? 1 : num_threads)
  for (std::int64_t i = 0; i < num_tasks; ++i) {
    const int status = run([&] {
      task(i);
      return 0;
    });
#pragma omp critical
    if (first_error == 0) first_error = status;
  }
  return first_error;
}

inline Dropout read_noise(const void* noise) {
  Dropout dropout;
  std::memcpy(&dropout, noise, sizeof dropout);
  return dropout;
}

}  // namespace dense

#endif  // TASKS_H_
