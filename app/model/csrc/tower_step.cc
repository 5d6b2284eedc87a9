#include "tower_step.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "layer.h"

namespace dense {
namespace {

using AfterWeights = void(std::int64_t);  // the function after_weights of tower_gradients

constexpr std::int64_t kLanes = 16;  // number of lanes of a dot product, which fixes its order of summation
// number of products that oneDNN multiplies and adds in the time of one elementwise value
constexpr std::int64_t kProductsInValue = 8;

// Return Σ left[i] · right[i]. Values are added into lanes, then the lanes in order.
ANY_MACHINE float dot(const float* left, const float* right, std::int64_t size) {
  float lanes[kLanes] = {};
  const std::int64_t whole = size - size % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += left[i + lane] * right[i + lane];
  }
  for (std::int64_t i = whole; i < size; ++i) lanes[i - whole] += left[i] * right[i];
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// to[i] += factor * from[i]
ANY_MACHINE void add_multiple(float factor, const float* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

// Return the largest absolute value, without NaN.
float largest(const float* values, std::int64_t size) {
  return std::accumulate(values, values + size, 0.0f, [](float most, float x) { return std::max(most, std::fabs(x)); });
}

// Values of a step that are kept from the forward to the backward pass. The next step uses the same memory again.
template <typename Input>
struct Scratch {
  std::vector<float> numeric_inputs, ones;               // [B, N + M + 1], [B, 1]
  std::vector<float> numeric_weights, numeric_gradient;  // [N + M + 1, H_0]
  std::vector<std::vector<float>> outputs;               // [B, H_i]
  std::vector<LayerMemory<Input>> layers;
  std::vector<float> logits, block_sums;
};

// The dense model. A step is two rounds of tasks, so threads meet twice. In the first round, a block of rows goes
// forward and backward through all layers while its values are in a core's cache. The second round computes the
// gradients of the weights.
template <typename Input>
class Model {
 public:
  Model(const TowerShape& shape, const TowerArrays& parameters, const TowerBatch& batch)
      : s_(shape), p_(parameters), batch_(batch), last_(shape.widths[shape.num_layers - 1]) {
    const std::size_t count = static_cast<std::size_t>(s_.num_layers);
    scratch_.outputs.resize(count);
    scratch_.layers.resize(count);
    numeric_weights();
    room(scratch_.numeric_inputs, s_.num_rows * (num_few() + 1));
    room(scratch_.ones, s_.num_rows);
    dropouts_.resize(batch_.noise == nullptr ? 0 : count);
    for (std::int64_t i = 0; i < s_.num_layers; ++i) {
      const std::size_t k = static_cast<std::size_t>(i);
      room(scratch_.outputs[k], s_.num_rows * s_.widths[i]);
      if (batch_.noise != nullptr) dropouts_[k] = read_noise(batch_.noise + 3 * i);
      const LayerSizes sizes{s_.num_rows, width_in(i), s_.widths[i], i == 0 ? num_few() + 1 : 1};
      layers_.emplace_back(sizes, p_.matrices[i], scratch_.layers[k], batch_.noise == nullptr ? nullptr : &dropouts_[k]);
    }
  }

  int forward(float* logits) {
    return run_blocks(s_.num_rows, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      forward_rows(first, rows, logits);
    });
  }

  int backward(const TowerArrays& g, float* numeric_factor, AfterWeights* after_weights, float* deep_gradient,
               float* wide_gradient, float* result) {
    float* const logits = room(scratch_.logits, s_.num_rows);
    // Number of sums that each block of rows computes: the gradient of the last matrix, the loss, and the gradients of
    // the bias and of the numeric fields' wide weights.
    const std::int64_t width = last_ + 2 + s_.num_numeric;
    const std::int64_t count = num_blocks(s_.num_rows, rows_per_task(s_.num_rows));
    float* const sums = room(scratch_.block_sums, count * width);
    for (Layer<Input>& layer : layers_) {
      layer.keep_inputs();
      layer.prepare_backward();
    }
    const auto deep_rows = [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      layers_[0].input_gradient(first, rows, deep_gradient + first * s_.num_inputs);
      check(deep_gradient + first * s_.num_inputs, rows * s_.num_inputs, s_.largest_gradient);
    };
    int status = run_blocks(s_.num_rows, [&](std::int64_t block, std::int64_t first, std::int64_t rows) {
      forward_rows(first, rows, logits);
      thread_local std::vector<float> gradient, next;
      losses(first, rows, logits, wide_gradient, room(gradient, rows * last_), sums + block * width);
      for (std::int64_t i = s_.num_layers - 1; i >= 0; --i) {
        const Layer<Input>& layer = layers_[static_cast<std::size_t>(i)];
        layer.output_gradient(gradient.data(), output(i), first, rows);
        if (i == 0) break;
        layer.input_gradient(first, rows, room(next, rows * s_.widths[i - 1]));
        std::swap(gradient, next);
      }
      if (after_weights == nullptr) deep_rows(block, first, rows);
      check(wide_gradient + first, rows, s_.largest_gradient);
    });
    if (status == 0) status = weight_gradients(g, after_weights);
    if (status != 0) return status;
    for (std::int64_t block = 1; block < count; ++block) add_multiple(1.0f, sums + block * width, width, sums);
    std::copy_n(sums, last_, g.matrices[s_.num_layers]);
    result[1] = sums[last_];
    g.bias[0] = sums[last_ + 1];
    if (s_.num_numeric > 0) std::copy_n(sums + last_ + 2, s_.num_numeric, g.numeric_weight);
    status = numeric_gradients(g, numeric_factor);
    result[0] = result[1] + numeric_loss();
    check_vectors(p_);
    check_vectors(g, s_.largest_summand);
    if (status == 0 && after_weights != nullptr) {
      after_weights(std::numeric_limits<std::int64_t>::max());
      status = run_blocks(s_.num_rows, deep_rows);
    }
    result[2] = is_finite_ && std::isfinite(result[0] * s_.loss_scale) ? 1.0f : 0.0f;
    return status;
  }

 private:
  // Compute the weights [N + M + 1, H_0] by which the first layer multiplies its few inputs (numbers, vector components
  // and the 1 of the bias): E_f · W_f for each numeric field f, its embedding row multiplied by its block of the first
  // matrix, then the matrix of the vectors, then the bias.
  void numeric_weights() {
    const std::int64_t width = s_.widths[0], dim = s_.embedding_dim;
    float* const f = room(scratch_.numeric_weights, (num_few() + 1) * width);
    run_tasks(s_.num_numeric, [&](std::int64_t field) {
      float* const to = f + field * width;
      std::fill_n(to, width, 0.0f);
      for (std::int64_t d = 0; d < dim; ++d) {
        add_multiple(p_.numeric_rows[field * dim + d], p_.numeric_matrix + (field * dim + d) * width, width, to);
      }
    }, !is_worth_threads(s_.num_numeric * dim * width));
    if (s_.num_vector > 0) std::copy_n(p_.vector_matrix, s_.num_vector * width, f + s_.num_numeric * width);
    std::copy_n(p_.biases[0], width, f + num_few() * width);
  }

  void forward_rows(std::int64_t first, std::int64_t rows, float* logits) {
    const std::int64_t columns = num_few() + 1;
    float* const n = scratch_.numeric_inputs.data();
    for (std::int64_t row = first; row < first + rows; ++row) {
      std::copy_n(numbers(row), num_few(), n + row * columns);
      n[row * columns + num_few()] = 1.0f;
    }
    std::fill_n(scratch_.ones.data() + first, rows, 1.0f);
    for (std::int64_t i = 0; i < s_.num_layers; ++i) {
      layers_[static_cast<std::size_t>(i)].forward(inputs(i), few_inputs(i), few_weights(i), first, rows, output(i));
    }
    const float* const h = output(s_.num_layers - 1);
    for (std::int64_t row = first; row < first + rows; ++row) {
      logits[row] = batch_.wide[row] + p_.bias[0] + wide_numeric(row) + dot(h + row * last_, p_.matrices[s_.num_layers], last_);
    }
  }

  // For one block of rows, compute the cross-entropy and the gradients of all weights behind the last hidden layer,
  // both added up in `sum`, and the gradient dh [rows, H_L-1] of that layer's outputs.
  void losses(std::int64_t first, std::int64_t rows, const float* logits, float* wide_gradient, float* dh, float* sum) {
    const float keep = 1.0f - s_.label_smoothing, half = 0.5f * s_.label_smoothing;
    std::fill_n(sum, last_ + 2 + s_.num_numeric, 0.0f);
    double loss = 0.0;
    for (std::int64_t row = first; row < first + rows; ++row) {
      const float x = logits[row], small = std::exp(-std::fabs(x));
      const float label = s_.label_smoothing == 0.0f ? batch_.labels[row] : keep * batch_.labels[row] + half;
      const float probability = (x >= 0.0f ? 1.0f : small) / (1.0f + small);
      const float part = batch_.example_weights[row];
      loss += static_cast<double>(part * ((x > 0.0f ? x : 0.0f) - x * label + std::log1p(small)));
      const float gradient = s_.loss_scale * (part * (probability - label));
      wide_gradient[row] = gradient;
      set_multiple(gradient, p_.matrices[s_.num_layers], last_, dh + (row - first) * last_);
      add_multiple(gradient, output(s_.num_layers - 1) + row * last_, last_, sum);
      sum[last_ + 1] += gradient;
      add_multiple(gradient, numbers(row), s_.num_numeric, sum + last_ + 2);
    }
    sum[last_] = static_cast<float>(loss);
  }

  // Compute the gradients of the weights of all layers. The tasks of the first layer come first, because they are
  // the longest. For several ranks, the tasks run in rounds, so that ranks exchange the results of a round during the
  // next one.
  int weight_gradients(const TowerArrays& g, AfterWeights* after_weights) {
    float* const first_df = room(scratch_.numeric_gradient, (num_few() + 1) * s_.widths[0]);
    std::vector<std::pair<std::int64_t, std::int64_t>> tasks;  // layer, and number of its task
    std::int64_t weights = 0;
    for (std::int64_t i = 0; i < s_.num_layers; ++i) {
      weights += width_in(i) * s_.widths[i];
      const std::int64_t count = layers_[static_cast<std::size_t>(i)].num_weight_tasks();
      for (std::int64_t task = 0; task < count; ++task) tasks.emplace_back(i, task);
    }
    const std::int64_t size = static_cast<std::int64_t>(tasks.size());
    const bool alone = !is_worth_threads(s_.num_rows * weights / kProductsInValue);
    int status = 0;
    for (std::int64_t start = 0, end; status == 0 && start < size; start = end) {
      end = after_weights == nullptr || size - start < 2 * kTasksInStep ? size : start + kTasksInStep;
      status = run_tasks(end - start, [&](std::int64_t number) {
        const auto [i, task] = tasks[static_cast<std::size_t>(start + number)];
        const Layer<Input>& layer = layers_[static_cast<std::size_t>(i)];
        layer.weight_gradient(task, inputs(i), few_inputs(i), g.matrices[i], i == 0 ? first_df : g.biases[i]);
        const auto [first, rows] = layer.weight_rows(task);
        check(p_.matrices[i] + first * s_.widths[i], rows * s_.widths[i]);
        check(g.matrices[i] + first * s_.widths[i], rows * s_.widths[i], s_.largest_summand);
      }, alone);
      if (status == 0 && end < size) {
        const auto [i, task] = tasks[static_cast<std::size_t>(end - 1)];
        const auto [first, rows] = layers_[static_cast<std::size_t>(i)].weight_rows(task);
        after_weights((i == 0 ? first + rows : s_.num_inputs) * s_.widths[0]);
      }
    }
    return status;
  }

  // Compute the gradients of the numeric fields' embedding rows and matrix blocks, of the vectors' matrix and of the
  // first bias, from the gradient of the weights that `numeric_weights` has made of them. If numeric_factor is not
  // null, it is computed in place of the gradient of the matrix blocks.
  int numeric_gradients(const TowerArrays& g, float* numeric_factor) {
    const std::int64_t width = s_.widths[0], dim = s_.embedding_dim;
    const float* const df = scratch_.numeric_gradient.data();
    std::copy_n(df + num_few() * width, width, g.biases[0]);
    if (s_.num_vector > 0) std::copy_n(df + s_.num_numeric * width, s_.num_vector * width, g.vector_matrix);
    if (numeric_factor != nullptr) std::copy_n(df, s_.num_numeric * width, numeric_factor);
    return run_tasks(s_.num_numeric, [&](std::int64_t field) {
      for (std::int64_t i = field * dim; i < (field + 1) * dim; ++i) {
        const float row = p_.numeric_rows[i];
        g.numeric_rows[i] = dot(p_.numeric_matrix + i * width, df + field * width, width) + s_.loss_scale * (s_.l2_coef * row);
        if (numeric_factor == nullptr) set_multiple(row, df + field * width, width, g.numeric_matrix + i * width);
      }
      check(p_.numeric_matrix + field * dim * width, dim * width);
      if (numeric_factor == nullptr) {
        check(g.numeric_matrix + field * dim * width, dim * width);
      } else {
        check(df + field * width, width);
        const float product = largest(p_.numeric_rows + field * dim, dim) * largest(df + field * width, width);
        check(&product, 1, s_.largest_summand);
      }
    }, !is_worth_threads(s_.num_numeric * dim * width));
  }

  // Return the L2 term of the loss for the embedding rows of the numeric fields.
  float numeric_loss() const {
    double squares = 0.0;
    for (std::int64_t i = 0; i < s_.num_numeric * s_.embedding_dim; ++i) {
      squares += static_cast<double>(p_.numeric_rows[i]) * p_.numeric_rows[i];
    }
    return static_cast<float>(0.5 * static_cast<double>(s_.l2_coef) * squares);
  }

  void check(const float* values, std::int64_t size, float limit = std::numeric_limits<float>::infinity()) {
    if (!all_below(values, size, limit)) is_finite_ = false;
  }

  // Check that the values of the small arrays are finite: all arrays but the matrices of the hidden layers.
  void check_vectors(const TowerArrays& arrays, float limit = std::numeric_limits<float>::infinity()) {
    check(arrays.bias, 1, limit);
    if (s_.num_numeric > 0) {
      check(arrays.numeric_weight, s_.num_numeric, limit);
      check(arrays.numeric_rows, s_.num_numeric * s_.embedding_dim, limit);
    }
    if (s_.num_vector > 0) check(arrays.vector_matrix, s_.num_vector * s_.widths[0], limit);
    check(arrays.matrices[s_.num_layers], last_, limit);
    for (std::int64_t i = 0; i < s_.num_layers; ++i) check(arrays.biases[i], s_.widths[i], limit);
  }

  // Number of the first layer's inputs beside the deep rows and the bias: numbers and components of vectors.
  std::int64_t num_few() const { return s_.num_numeric + s_.num_vector; }
  const float* numbers(std::int64_t row) const { return batch_.numeric + row * num_few(); }
  std::int64_t width_in(std::int64_t i) const { return i == 0 ? s_.num_inputs : s_.widths[i - 1]; }
  float* output(std::int64_t i) const { return scratch_.outputs[static_cast<std::size_t>(i)].data(); }
  float* inputs(std::int64_t i) const { return i == 0 ? batch_.deep : output(i - 1); }
  float* few_inputs(std::int64_t i) const { return i == 0 ? scratch_.numeric_inputs.data() : scratch_.ones.data(); }
  float* few_weights(std::int64_t i) const { return i == 0 ? scratch_.numeric_weights.data() : p_.biases[i]; }
  float wide_numeric(std::int64_t row) const {
    return s_.num_numeric == 0 ? 0.0f : dot(numbers(row), p_.numeric_weight, s_.num_numeric);
  }

  inline static Scratch<Input> scratch_;  // guarded by layer_mutex

  const TowerShape& s_;
  const TowerArrays& p_;
  const TowerBatch& batch_;
  const std::int64_t last_;  // number of units of the last hidden layer
  std::vector<Dropout> dropouts_;
  std::vector<Layer<Input>> layers_;
  std::atomic<bool> is_finite_{true};  // false if a checked value was not finite or too large
};

// Call work(model) with a model of the right precision, while no other layer runs.
template <typename Work>
int with_model(const TowerShape& shape, const TowerArrays& parameters, const TowerBatch& batch, const Work& work) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  return run([&] {
    if (shape.bfloat16) {
      Model<BFloat16> model(shape, parameters, batch);
      return work(model);
    }
    Model<float> model(shape, parameters, batch);
    return work(model);
  });
}

}  // namespace
}  // namespace dense

extern "C" {

int tower_logits(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch, float* logits) {
  return dense::with_model(*shape, *parameters, *batch, [&](auto& model) { return model.forward(logits); });
}

int tower_gradients(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch,
                    const TowerArrays* gradients, float* numeric_factor, const void* after_weights, float* deep_gradient,
                    float* wide_gradient, float* result) {
  const auto call = reinterpret_cast<dense::AfterWeights*>(reinterpret_cast<std::uintptr_t>(after_weights));
  return dense::with_model(*shape, *parameters, *batch, [&](auto& model) {
    return model.backward(*gradients, numeric_factor, call, deep_gradient, wide_gradient, result);
  });
}

}  // extern "C"
