#include "dense_layer.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "bfloat16.h"
#include "product.h"

namespace dense {
namespace {

using Type = dnnl::memory::data_type;

constexpr std::int64_t kRowsPerTask = 512;  // a block of x in bfloat16 and of y stay near the core
constexpr std::int64_t kColumnsPerTask = 128;
constexpr std::int64_t kTasksInStep = 8;  // dW's tasks come in eights, to fall evenly on 2, 4 or 8 threads

int num_threads = 1;
bool use_bfloat16 = false;

// Memory that is used again by the next call; fresh pages for each would cost more than filling them.
// Guarded by `layer_mutex`: one layer runs at a time.
struct Scratch {
  std::vector<float> gradient;           // dz [B, H]
  std::vector<BFloat16> gradient_bits;   // the same rounded
  std::vector<BFloat16> weights_bits;    // W [K, H] rounded
};
Scratch scratch;
std::mutex layer_mutex;

template <typename T>
T* room(std::vector<T>& buffer, std::int64_t size) {
  if (buffer.size() < static_cast<std::size_t>(size)) buffer.resize(static_cast<std::size_t>(size));
  return buffer.data();
}

Matrix row_major(void* data, std::int64_t columns) { return {data, columns, 1}; }
Matrix transposed(void* data, std::int64_t columns) { return {data, 1, columns}; }

void round_values(const float* from, std::int64_t size, BFloat16* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = to_bfloat16(from[i]);
}

// Runs task(0) ... task(num_tasks - 1) on the threads; the first oneDNN error, as a number, or 0.
template <typename Task>
int run_tasks(std::int64_t num_tasks, const Task& task) {
  int status = 0;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (std::int64_t i = 0; i < num_tasks; ++i) {
    try {
      task(i);
    } catch (const dnnl::error& error) {
#pragma omp critical
      if (status == 0) status = std::max(1, static_cast<int>(error.status));
    }
  }
  return status;
}

std::int64_t num_blocks(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

// W as the products take it: itself, or rounded on all threads.
void* weights_for_products(float* weights, std::int64_t size) {
  if (!use_bfloat16) return weights;
  BFloat16* const rounded = room(scratch.weights_bits, size);
  constexpr std::int64_t kBlock = 1 << 16;
#pragma omp parallel for num_threads(num_threads)
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    round_values(weights + begin, std::min(kBlock, size - begin), rounded + begin);
  }
  return rounded;
}

struct Sizes {
  std::int64_t rows, in, out, numeric;  // B, K, H, N
};

int forward(const Sizes& s, float* x, float* weights, float* n, float* numeric_weights, float* y) {
  const Type type = use_bfloat16 ? Type::bf16 : Type::f32;
  void* const w = weights_for_products(weights, s.in * s.out);
  return run_tasks(num_blocks(s.rows, kRowsPerTask), [&](std::int64_t task) {
    const std::int64_t first = task * kRowsPerTask;
    const std::int64_t rows = std::min(kRowsPerTask, s.rows - first);
    const Matrix target = row_major(y + first * s.out, s.out);
    multiply({rows, s.out, s.numeric}, Type::f32, row_major(n + first * s.numeric, s.numeric),
             row_major(numeric_weights, s.out), target, Finish::kStore);
    void* inputs = x + first * s.in;
    if (use_bfloat16) {
      thread_local std::vector<BFloat16> buffer;
      BFloat16* const rounded = room(buffer, rows * s.in);
      round_values(x + first * s.in, rows * s.in, rounded);
      inputs = rounded;
    }
    multiply({rows, s.out, s.in}, type, row_major(inputs, s.in), row_major(w, s.out), target, Finish::kAddRelu);
  });
}

// dz = dy where y > 0, else 0, for a block of rows; rounded where the products take bfloat16.
void* gradient_through_relu(const float* dy, const float* y, std::int64_t first, std::int64_t size) {
  if (use_bfloat16) {
    BFloat16* const rounded = scratch.gradient_bits.data() + first;
    for (std::int64_t i = 0; i < size; ++i) rounded[i] = to_bfloat16(y[first + i] > 0.0f ? dy[first + i] : 0.0f);
    return rounded;
  }
  float* const gradient = scratch.gradient.data() + first;
  for (std::int64_t i = 0; i < size; ++i) gradient[i] = y[first + i] > 0.0f ? dy[first + i] : 0.0f;
  return gradient;
}

// Columns `first` ... of x [rows, width] as a product takes them: in place, or rounded into `buffer`.
Matrix columns_transposed(float* x, std::int64_t rows, std::int64_t width, std::int64_t first, std::int64_t columns) {
  if (!use_bfloat16) return transposed(x + first, width);
  thread_local std::vector<BFloat16> buffer;
  BFloat16* const rounded = room(buffer, rows * columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    round_values(x + row * width + first, columns, rounded + row * columns);
  }
  return transposed(rounded, columns);
}

// How many columns of x a task of dW takes: about kColumnsPerTask, so that the tasks come in steps of kTasksInStep.
std::int64_t columns_per_task(std::int64_t width) {
  const std::int64_t tasks = std::max<std::int64_t>(1, width / (kColumnsPerTask * kTasksInStep)) * kTasksInStep;
  return num_blocks(width, tasks);
}

int backward(const Sizes& s, float* dy, float* y, float* x, float* weights, float* n, float* dx, float* dw,
             float* df) {
  const Type type = use_bfloat16 ? Type::bf16 : Type::f32;
  void* const w = weights_for_products(weights, s.in * s.out);
  if (use_bfloat16) {
    room(scratch.gradient_bits, s.rows * s.out);
  } else {
    room(scratch.gradient, s.rows * s.out);
  }
  const int status = run_tasks(num_blocks(s.rows, kRowsPerTask), [&](std::int64_t task) {
    const std::int64_t first = task * kRowsPerTask;
    const std::int64_t rows = std::min(kRowsPerTask, s.rows - first);
    void* const dz = gradient_through_relu(dy, y, first * s.out, rows * s.out);
    multiply({rows, s.in, s.out}, type, row_major(dz, s.out), transposed(w, s.out), row_major(dx + first * s.in, s.in),
             Finish::kStore);
  });
  if (status != 0) return status;

  void* const dz = use_bfloat16 ? static_cast<void*>(scratch.gradient_bits.data()) : scratch.gradient.data();
  const std::int64_t step = columns_per_task(s.in);
  const std::int64_t weight_tasks = num_blocks(s.in, step);
  return run_tasks(weight_tasks + 1, [&](std::int64_t task) {
    const bool numeric = task == 0;  // first, as it is the odd one
    const std::int64_t first = numeric ? 0 : (task - 1) * step;
    const std::int64_t columns = numeric ? s.numeric : std::min(step, s.in - first);
    const Matrix left = columns_transposed(numeric ? n : x, s.rows, numeric ? s.numeric : s.in, first, columns);
    float* const target = numeric ? df : dw + first * s.out;
    multiply({columns, s.out, s.rows}, type, left, row_major(dz, s.out), row_major(target, s.out), Finish::kStore);
  });
}

}  // namespace
}  // namespace dense

extern "C" {

void dense_configure(int32_t num_threads, int32_t bfloat16) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  dense::num_threads = std::max(1, num_threads);
  dense::use_bfloat16 = bfloat16 != 0;
}

int dense_forward(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  return dense::forward({shapes[0][0], shapes[0][1], shapes[1][1], shapes[2][1]}, p[0], p[1], p[2], p[3], p[4]);
}

int dense_backward(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  return dense::backward({shapes[2][0], shapes[2][1], shapes[3][1], shapes[4][1]}, p[0], p[1], p[2], p[3], p[4], p[5],
                         p[6], p[7]);
}

}  // extern "C"
