// The layer of dense_layer.h as a class: forward and backward of one hidden layer on the threads.

#ifndef LAYER_H_
#define LAYER_H_

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "elementwise.h"
#include "product.h"
#include "tasks.h"

namespace dense {

inline constexpr std::int64_t kMaxRowsPerTask = 512;  // a block of x in bfloat16 and of y stay near the core
inline constexpr std::int64_t kMinRowsPerTask = 64;   // fewer, and reading W again for each block costs more than threads gain
inline constexpr std::int64_t kColumnsPerTask = 128;
inline constexpr std::int64_t kTasksInStep = 8;  // tasks come in eights, to fall evenly on 2, 4 or 8 threads

struct LayerSizes {
  std::int64_t rows, in, out, numeric;  // B, K, H, N
};

// Rows of a block: a small batch still gives each of eight threads one.
inline std::int64_t rows_per_task(std::int64_t rows) {
  return std::clamp(num_blocks(rows, kTasksInStep), kMinRowsPerTask, kMaxRowsPerTask);
}

// A layer whose products take `Input`: float, or BFloat16 rounded from float.
template <typename Input>
class Layer {
 public:
  explicit Layer(const LayerSizes& sizes, const Dropout* dropout = nullptr) : s_(sizes), dropout_(dropout) {}

  int forward(float* x, float* weights, float* n, float* numeric_weights, float* y) const {
    Input* const w = rounded_weights(weights);
    const std::uint32_t* const hashes = dropout_ == nullptr ? nullptr : hashes_of_units();
    const std::int64_t block = rows_per_task(s_.rows);
    return run_tasks(num_blocks(s_.rows, block), [&](std::int64_t task) {
      const std::int64_t first = task * block;
      const std::int64_t rows = std::min(block, s_.rows - first);
      const Matrix target = row_major(y + first * s_.out, s_.out);
      multiply({rows, s_.out, s_.numeric}, dnnl::memory::data_type::f32, row_major(n + first * s_.numeric, s_.numeric),
               row_major(numeric_weights, s_.out), target, Finish::kStore);
      multiply({rows, s_.out, s_.in}, kType, row_major(rounded_rows(x + first * s_.in, rows), s_.in),
               row_major(w, s_.out), target, Finish::kAddRelu);
      if (dropout_ != nullptr) drop_units(y + first * s_.out, rows, s_.out, *dropout_, first, hashes);
    });
  }

  int backward(const float* dy, const float* y, float* x, float* weights, float* n, float* dx, float* dw,
               float* df) const {
    static std::vector<Input> buffer;
    Input* const dz = room(buffer, s_.rows * s_.out);
    const int status = input_gradient(dy, y, weights, dz, dx);
    return status != 0 ? status : weight_gradients(dz, x, n, dw, df);
  }

 private:
  static constexpr bool kRounds = std::is_same_v<Input, BFloat16>;
  static constexpr auto kType = kRounds ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;

  const std::uint32_t* hashes_of_units() const {
    static std::vector<std::uint32_t> buffer;
    std::uint32_t* const hashes = room(buffer, s_.out);
    unit_hashes(s_.out, hashes);
    return hashes;
  }

  // W [K, H] as the products take it.
  Input* rounded_weights(float* weights) const {
    if constexpr (kRounds) {
      static std::vector<Input> buffer;
      Input* const to = room(buffer, s_.in * s_.out);
#pragma omp parallel for num_threads(num_threads)
      for (std::int64_t row = 0; row < s_.in; ++row) {
        round_values(weights + row * s_.out, s_.out, to + row * s_.out);
      }
      return to;
    } else {
      return weights;
    }
  }

  // A block of rows of x as the products take it.
  Input* rounded_rows(float* x, std::int64_t rows) const {
    if constexpr (kRounds) {
      thread_local std::vector<Input> buffer;
      Input* const to = room(buffer, rows * s_.in);
      round_values(x, rows * s_.in, to);
      return to;
    } else {
      return x;
    }
  }

  // The transpose of columns `first` ... of a matrix [B, width], as the products take it.
  Matrix rounded_columns(float* matrix, std::int64_t width, std::int64_t first, std::int64_t columns) const {
    if constexpr (kRounds) {
      thread_local std::vector<Input> buffer;
      Input* const to = room(buffer, s_.rows * columns);
      for (std::int64_t row = 0; row < s_.rows; ++row) {
        round_values(matrix + row * width + first, columns, to + row * columns);
      }
      return transposed(to, columns);
    } else {
      return transposed(matrix + first, width);
    }
  }

  // dz = dy (with dropout, scaled) where y > 0, else 0; dx = dz W^T. A task is a block of rows.
  int input_gradient(const float* dy, const float* y, float* weights, Input* dz, float* dx) const {
    Input* const w = rounded_weights(weights);
    const float scale = dropout_ == nullptr ? 1.0f : dropout_->scale();
    const std::int64_t block = rows_per_task(s_.rows);
    return run_tasks(num_blocks(s_.rows, block), [&](std::int64_t task) {
      const std::int64_t first = task * block;
      const std::int64_t rows = std::min(block, s_.rows - first);
      relu_gradient(dy + first * s_.out, y + first * s_.out, rows * s_.out, scale, dz + first * s_.out);
      multiply({rows, s_.in, s_.out}, kType, row_major(dz + first * s_.out, s_.out), transposed(w, s_.out),
               row_major(dx + first * s_.in, s_.in), Finish::kStore);
    });
  }

  // dW = x^T dz, a task being a block of x's columns; dF = n^T dz, one more task.
  int weight_gradients(Input* dz, float* x, float* n, float* dw, float* df) const {
    const std::int64_t steps = std::max<std::int64_t>(1, s_.in / (kColumnsPerTask * kTasksInStep));
    const std::int64_t width = num_blocks(s_.in, steps * kTasksInStep);
    return run_tasks(1 + num_blocks(s_.in, width), [&](std::int64_t task) {
      if (task == 0) {
        const Matrix left = rounded_columns(n, s_.numeric, 0, s_.numeric);
        multiply({s_.numeric, s_.out, s_.rows}, kType, left, row_major(dz, s_.out), row_major(df, s_.out),
                 Finish::kStore);
        return;
      }
      const std::int64_t first = (task - 1) * width;
      const std::int64_t columns = std::min(width, s_.in - first);
      multiply({columns, s_.out, s_.rows}, kType, rounded_columns(x, s_.in, first, columns), row_major(dz, s_.out),
               row_major(dw + first * s_.out, s_.out), Finish::kStore);
    });
  }

  LayerSizes s_;
  const Dropout* dropout_;  // or null
};

}  // namespace dense

#endif  // LAYER_H_
