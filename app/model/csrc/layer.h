// The layer of dense_layer.h as a class. Forward and backward pass work on blocks of rows or of weights, which may
// be processed in any order and on any threads.

#ifndef LAYER_H_
#define LAYER_H_

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "elementwise.h"
#include "product.h"
#include "tasks.h"

namespace dense {

// Upper bound of the rows per block, so that a block of x in bfloat16 and a block of y fit into a core's cache.
inline constexpr std::int64_t kMaxRowsPerTask = 512;
// Lower bound of the rows per block. With smaller blocks, reading W again for each block costs more than the additional
// threads gain.
inline constexpr std::int64_t kMinRowsPerTask = 64;
inline constexpr std::int64_t kColumnsPerTask = 128;
// Numbers of tasks are multiples of 8, so that 2, 4 or 8 threads get equal shares.
inline constexpr std::int64_t kTasksInStep = 8;

struct LayerSizes {
  std::int64_t rows, in, out, numeric;  // B, K, H, N
};

// Return the number of rows per block. Even a small batch gives each of eight threads one block.
inline std::int64_t rows_per_task(std::int64_t rows) {
  return std::clamp(num_blocks(rows, kTasksInStep), kMinRowsPerTask, kMaxRowsPerTask);
}

// Call work(block, first, rows) for each block of a batch's rows, on all threads.
template <typename Work>
int run_blocks(std::int64_t num_rows, const Work& work) {
  const std::int64_t block = rows_per_task(num_rows);
  return run_tasks(num_blocks(num_rows, block), [&](std::int64_t task) {
    work(task, task * block, std::min(block, num_rows - task * block));
  });
}

// Memory for values that a layer keeps from forward to backward. It is used again by the next call.
template <typename Input>
struct LayerMemory {
  std::vector<Input> weights, gradient;  // W if the products round it, and dz
  std::vector<Input> inputs;             // x if the products round it and keep_inputs was called
  std::vector<std::uint32_t> hashes;     // hashes of the units, with dropout
};

// A layer whose products take `Input`: float, or BFloat16 rounded from float. `memory` and `dropout` must outlive
// it.
template <typename Input>
class Layer {
 public:
  Layer(const LayerSizes& sizes, float* weights, LayerMemory<Input>& memory, const Dropout* dropout = nullptr)
      : s_(sizes), dropout_(dropout), memory_(memory) {
    if constexpr (kRounds) {
      weights_ = room(memory.weights, s_.in * s_.out);
#pragma omp parallel for num_threads(num_threads) if (is_worth_threads(s_.in * s_.out))
      for (std::int64_t row = 0; row < s_.in; ++row) {
        round_values(weights + row * s_.out, s_.out, weights_ + row * s_.out);
      }
    } else {
      weights_ = weights;
    }
    if (dropout_ != nullptr) unit_hashes(s_.out, room(memory.hashes, s_.out));
  }

  // Let `forward` keep its inputs x rounded to Input, so that `weight_gradient` need not round them again.
  void keep_inputs() {
    if constexpr (kRounds) inputs_ = room(memory_.inputs, s_.rows * s_.in);
  }

  // Allocate memory for gradients. Call it before any of the gradient functions.
  void prepare_backward() const { room(memory_.gradient, s_.rows * s_.out); }

  // Compute the layer's outputs y for the batch rows first ... first + rows - 1, from its inputs x and its numeric
  // inputs n.
  void forward(float* x, float* n, float* numeric_weights, std::int64_t first, std::int64_t rows, float* y) const {
    float* const from = n + first * s_.numeric;
    const Matrix target = row_major(y + first * s_.out, s_.out);
    if (s_.numeric == 1) {  // The bias is the only numeric input. oneDNN takes ten times as long for this product.
      for (std::int64_t row = 0; row < rows; ++row) {
        set_multiple(from[row], numeric_weights, s_.out, y + (first + row) * s_.out);
      }
    } else {
      multiply({rows, s_.out, s_.numeric}, dnnl::memory::data_type::f32, row_major(from, s_.numeric),
               row_major(numeric_weights, s_.out), target, Finish::kStore);
    }
    multiply({rows, s_.out, s_.in}, kType, row_major(rounded_rows(x, first, rows), s_.in),
             row_major(weights_, s_.out), target, Finish::kAddRelu);
    if (dropout_ != nullptr) drop_units(y + first * s_.out, rows, s_.out, *dropout_, first, memory_.hashes.data());
  }

  // For the batch rows first ... first + rows - 1, compute the gradient dz before the ReLU, which is dy where y > 0,
  // else 0, scaled with dropout. dz is kept in memory. dy [rows, H] begins with the first of these rows.
  void output_gradient(const float* dy, const float* y, std::int64_t first, std::int64_t rows) const {
    const float scale = dropout_ == nullptr ? 1.0f : dropout_->scale();
    relu_gradient(dy, y + first * s_.out, rows * s_.out, scale, memory_.gradient.data() + first * s_.out);
  }

  // For the batch rows first ... first + rows - 1, compute the gradient dx = dz W^T of the inputs, after their dz. dx
  // [rows, K] begins with the first of these rows.
  void input_gradient(std::int64_t first, std::int64_t rows, float* dx) const {
    Input* const dz = memory_.gradient.data() + first * s_.out;
    multiply({rows, s_.in, s_.out}, kType, row_major(dz, s_.out), transposed(weights_, s_.out),
             row_major(dx, s_.in), Finish::kStore);
  }

  // Return the number of tasks that compute the gradients of the weights, dF and dW. They may run once `input_gradient`
  // has computed dz of all rows. The first tasks are blocks of rows of dF, the others are blocks of rows of dW.
  std::int64_t num_weight_tasks() const { return num_few_tasks() + num_blocks(s_.in, columns_per_task()); }

  // Return the first row of W that a task computes, and the number of its rows.
  std::pair<std::int64_t, std::int64_t> weight_rows(std::int64_t task) const {
    if (task < num_few_tasks()) return {0, 0};
    const std::int64_t first = (task - num_few_tasks()) * columns_per_task();
    return {first, std::min(columns_per_task(), s_.in - first)};
  }

  // Run one task: compute a block of rows of the weights' gradients dF = n^T dz or dW = x^T dz.
  void weight_gradient(std::int64_t task, float* x, float* n, float* dw, float* df) const {
    const auto [first, columns] = weight_rows(task);
    const Matrix dz = row_major(memory_.gradient.data(), s_.out);
    if (task < num_few_tasks()) {
      const std::int64_t from = task * kColumnsPerTask, count = std::min(kColumnsPerTask, s_.numeric - from);
      multiply({count, s_.out, s_.rows}, kType, rounded_columns(n, s_.numeric, from, count), dz,
               row_major(df + from * s_.out, s_.out), Finish::kStore);
    } else {
      const Matrix from = inputs_ ? transposed(inputs_ + first, s_.in) : rounded_columns(x, s_.in, first, columns);
      multiply({columns, s_.out, s_.rows}, kType, from, dz,
               row_major(dw + first * s_.out, s_.out), Finish::kStore);
    }
  }

 private:
  static constexpr bool kRounds = std::is_same_v<Input, BFloat16>;
  static constexpr auto kType = kRounds ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;

  std::int64_t num_few_tasks() const { return num_blocks(s_.numeric, kColumnsPerTask); }

  std::int64_t columns_per_task() const {
    const std::int64_t steps = std::max<std::int64_t>(1, s_.in / (kColumnsPerTask * kTasksInStep));
    return num_blocks(s_.in, steps * kTasksInStep);
  }

  // Return rows first ... first + rows - 1 of x, rounded to Input if that is bfloat16.
  Input* rounded_rows(float* x, std::int64_t first, std::int64_t rows) const {
    if constexpr (kRounds) {
      thread_local std::vector<Input> buffer;
      Input* const to = inputs_ ? inputs_ + first * s_.in : room(buffer, rows * s_.in);
      round_values(x + first * s_.in, rows * s_.in, to);
      return to;
    } else {
      return x + first * s_.in;
    }
  }

  // Return the transpose of columns first ... first + columns - 1 of a matrix [B, width], rounded to Input if that is
  // bfloat16.
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

  LayerSizes s_;
  const Dropout* dropout_;  // null without dropout
  LayerMemory<Input>& memory_;
  Input* weights_;           // [K, H], in the form that the products take
  Input* inputs_ = nullptr;  // [B, K], set by keep_inputs
};

}  // namespace dense

#endif  // LAYER_H_
