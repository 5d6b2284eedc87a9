#include "tower_step.h"

#include <cmath>
#include <limits>
#include <vector>

#include "layer.h"

namespace dense {
namespace {

constexpr std::int64_t kLanes = 16;             // of a dot product: its order of summation
constexpr std::int64_t kValuesPerTask = 1 << 14;

// Σ left[i] · right[i]: in lanes, then the lanes in order.
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

// to[i] = factor * from[i]
ANY_MACHINE void set_multiple(float factor, const float* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] = factor * from[i];
}

// What lies between the passes; used again by the next step.
struct Scratch {
  std::vector<float> numeric_inputs, ones;                   // [B, N + 1], [B, 1]
  std::vector<float> numeric_weights, numeric_gradient;      // [N + 1, H_0]
  std::vector<std::vector<float>> outputs;                   // [B, H_i]
  std::vector<float> gradient, next_gradient;                // [B, H_i]
  std::vector<float> logits, block_sums;
};

template <typename Input>
class Model {
 public:
  Model(const TowerShape& shape, const TowerArrays& parameters, const TowerBatch& batch)
      : s_(shape), p_(parameters), batch_(batch), last_(shape.widths[shape.num_layers - 1]) {}

  int forward(float* logits) {
    numeric_part();
    scratch_.outputs.resize(static_cast<std::size_t>(s_.num_layers));
    for (std::int64_t i = 0; i < s_.num_layers; ++i) {
      const Dropout dropout = dropout_of(i);
      float* const y = room(scratch_.outputs[static_cast<std::size_t>(i)], s_.num_rows * s_.widths[i]);
      const int status = layer(i, dropout).forward(inputs(i), p_.matrices[i], few_inputs(i), few_weights(i), y);
      if (status != 0) return status;
    }
    return in_blocks([&](std::int64_t, std::int64_t first, std::int64_t stop) {
      for (std::int64_t row = first; row < stop; ++row) {
        logits[row] = batch_.wide[row] + p_.bias[0] + wide_numeric(row) + dot(output(row), p_.matrices[s_.num_layers], last_);
      }
    });
  }

  int backward(const TowerArrays& g, float* deep_gradient, float* wide_gradient, float* result) {
    float* const logits = room(scratch_.logits, s_.num_rows);
    int status = forward(logits);
    if (status == 0) status = losses(logits, g, wide_gradient, result);
    for (std::int64_t i = s_.num_layers - 1; i >= 0 && status == 0; --i) {
      float* const dx = i == 0 ? deep_gradient : room(scratch_.next_gradient, s_.num_rows * s_.widths[i - 1]);
      float* const df = i == 0 ? room(scratch_.numeric_gradient, (s_.num_numeric + 1) * s_.widths[0]) : g.biases[i];
      const Dropout dropout = dropout_of(i);
      status = layer(i, dropout).backward(scratch_.gradient.data(), scratch_.outputs[static_cast<std::size_t>(i)].data(),
                                          inputs(i), p_.matrices[i], few_inputs(i), dx, g.matrices[i], df);
      std::swap(scratch_.gradient, scratch_.next_gradient);
    }
    if (status != 0) return status;
    result[0] = result[1] + numeric_gradients(g);
    bool finite = std::isfinite(result[0] * s_.loss_scale);
    status = check(g, deep_gradient, wide_gradient, &finite);
    result[2] = finite ? 1.0f : 0.0f;
    return status;
  }

 private:
  // x and a 1 for the bias, [B, N + 1]; the rows of both, [N + 1, H_0]: E_f · W_f and the bias.
  void numeric_part() {
    const std::int64_t columns = s_.num_numeric + 1, width = s_.widths[0], dim = s_.embedding_dim;
    float* const n = room(scratch_.numeric_inputs, s_.num_rows * columns);
    for (std::int64_t row = 0; row < s_.num_rows; ++row) {
      std::copy_n(batch_.numeric + row * s_.num_numeric, s_.num_numeric, n + row * columns);
      n[row * columns + s_.num_numeric] = 1.0f;
    }
    float* const ones = room(scratch_.ones, s_.num_rows);
    std::fill_n(ones, s_.num_rows, 1.0f);
    float* const f = room(scratch_.numeric_weights, columns * width);
    for (std::int64_t field = 0; field < s_.num_numeric; ++field) {
      float* const to = f + field * width;
      std::fill_n(to, width, 0.0f);
      for (std::int64_t d = 0; d < dim; ++d) {
        add_multiple(p_.numeric_rows[field * dim + d], p_.numeric_matrix + (field * dim + d) * width, width, to);
      }
    }
    std::copy_n(p_.biases[0], width, f + s_.num_numeric * width);
  }

  // Cross-entropy, the gradients of what is behind the last hidden layer, and that of its outputs.
  int losses(const float* logits, const TowerArrays& g, float* wide_gradient, float* result) {
    const std::int64_t width = last_ + 2 + s_.num_numeric;  // of a block: of the last matrix, loss, bias, numeric weights
    const std::int64_t count = num_blocks(s_.num_rows, rows_per_task(s_.num_rows));
    float* const sums = room(scratch_.block_sums, count * width);
    float* const dh = room(scratch_.gradient, s_.num_rows * last_);
    const float keep = 1.0f - s_.label_smoothing, half = 0.5f * s_.label_smoothing;
    const int status = in_blocks([&](std::int64_t block, std::int64_t first, std::int64_t stop) {
      float* const sum = sums + block * width;
      std::fill_n(sum, width, 0.0f);
      double loss = 0.0;
      for (std::int64_t row = first; row < stop; ++row) {
        const float x = logits[row], small = std::exp(-std::fabs(x));
        const float label = s_.label_smoothing == 0.0f ? batch_.labels[row] : keep * batch_.labels[row] + half;
        const float probability = (x >= 0.0f ? 1.0f : small) / (1.0f + small);
        const float part = batch_.example_weights[row];
        loss += static_cast<double>(part * ((x > 0.0f ? x : 0.0f) - x * label + std::log1p(small)));
        const float gradient = s_.loss_scale * (part * (probability - label));
        wide_gradient[row] = gradient;
        set_multiple(gradient, p_.matrices[s_.num_layers], last_, dh + row * last_);
        add_multiple(gradient, output(row), last_, sum);
        sum[last_ + 1] += gradient;
        add_multiple(gradient, batch_.numeric + row * s_.num_numeric, s_.num_numeric, sum + last_ + 2);
      }
      sum[last_] = static_cast<float>(loss);
    });
    for (std::int64_t block = 1; block < count; ++block) add_multiple(1.0f, sums + block * width, width, sums);
    std::copy_n(sums, last_, g.matrices[s_.num_layers]);
    result[1] = sums[last_];
    g.bias[0] = sums[last_ + 1];
    if (s_.num_numeric > 0) std::copy_n(sums + last_ + 2, s_.num_numeric, g.numeric_weight);
    return status;
  }

  // From the gradient of the first layer's few inputs' rows; the loss of the L2 term.
  float numeric_gradients(const TowerArrays& g) const {
    const std::int64_t width = s_.widths[0], dim = s_.embedding_dim;
    const float* const df = scratch_.numeric_gradient.data();
    std::copy_n(df + s_.num_numeric * width, width, g.biases[0]);
    double squares = 0.0;
    for (std::int64_t i = 0; i < s_.num_numeric * dim; ++i) {
      const float* const dfolded = df + i / dim * width;
      const float row = p_.numeric_rows[i];
      g.numeric_rows[i] = dot(p_.numeric_matrix + i * width, dfolded, width) + s_.loss_scale * (s_.l2_coef * row);
      set_multiple(row, dfolded, width, g.numeric_matrix + i * width);
      squares += static_cast<double>(row) * row;
    }
    return static_cast<float>(0.5 * static_cast<double>(s_.l2_coef) * squares);
  }

  int check(const TowerArrays& g, const float* deep_gradient, const float* wide_gradient, bool* finite) const {
    struct Values {
      const float* values;
      std::int64_t size;
      float limit;
    };
    constexpr float kAny = std::numeric_limits<float>::infinity();
    std::vector<Values> parts;
    const auto add = [&](const float* values, std::int64_t size, float limit) {
      for (std::int64_t first = 0; first < size; first += kValuesPerTask) {
        parts.push_back({values + first, std::min(kValuesPerTask, size - first), limit});
      }
    };
    for (const TowerArrays* arrays : {&p_, &g}) {
      add(arrays->bias, 1, kAny);
      if (s_.num_numeric > 0) {
        add(arrays->numeric_weight, s_.num_numeric, kAny);
        add(arrays->numeric_rows, s_.num_numeric * s_.embedding_dim, kAny);
        add(arrays->numeric_matrix, s_.num_numeric * s_.embedding_dim * s_.widths[0], kAny);
      }
      for (std::int64_t i = 0; i <= s_.num_layers; ++i) {
        add(arrays->matrices[i], width_in(i) * (i < s_.num_layers ? s_.widths[i] : 1), kAny);
        if (i < s_.num_layers) add(arrays->biases[i], s_.widths[i], kAny);
      }
    }
    add(deep_gradient, s_.num_rows * s_.num_inputs, s_.largest_gradient);
    add(wide_gradient, s_.num_rows, s_.largest_gradient);
    std::vector<char> good(parts.size());
    const int status = run_tasks(static_cast<std::int64_t>(parts.size()), [&](std::int64_t task) {
      const Values& part = parts[static_cast<std::size_t>(task)];
      good[static_cast<std::size_t>(task)] = all_below(part.values, part.size, part.limit);
    });
    *finite = *finite && std::find(good.begin(), good.end(), 0) == good.end();
    return status;
  }

  template <typename Work>
  int in_blocks(const Work& work) const {
    const std::int64_t block = rows_per_task(s_.num_rows);
    return run_tasks(num_blocks(s_.num_rows, block), [&](std::int64_t task) {
      work(task, task * block, std::min((task + 1) * block, s_.num_rows));
    });
  }

  Dropout dropout_of(std::int64_t i) const { return batch_.noise == nullptr ? Dropout{} : read_noise(batch_.noise + 3 * i); }

  Layer<Input> layer(std::int64_t i, const Dropout& dropout) const {
    const LayerSizes sizes{s_.num_rows, width_in(i), s_.widths[i], i == 0 ? s_.num_numeric + 1 : 1};
    return Layer<Input>(sizes, batch_.noise == nullptr ? nullptr : &dropout);
  }

  std::int64_t width_in(std::int64_t i) const { return i == 0 ? s_.num_inputs : s_.widths[i - 1]; }
  float* inputs(std::int64_t i) const {
    return i == 0 ? batch_.deep : scratch_.outputs[static_cast<std::size_t>(i - 1)].data();
  }
  float* few_inputs(std::int64_t i) const { return i == 0 ? scratch_.numeric_inputs.data() : scratch_.ones.data(); }
  float* few_weights(std::int64_t i) const { return i == 0 ? scratch_.numeric_weights.data() : p_.biases[i]; }
  const float* output(std::int64_t row) const {
    return scratch_.outputs[static_cast<std::size_t>(s_.num_layers - 1)].data() + row * last_;
  }
  float wide_numeric(std::int64_t row) const {
    return s_.num_numeric == 0 ? 0.0f : dot(batch_.numeric + row * s_.num_numeric, p_.numeric_weight, s_.num_numeric);
  }

  inline static Scratch scratch_;  // guarded by layer_mutex

  const TowerShape& s_;
  const TowerArrays& p_;
  const TowerBatch& batch_;
  const std::int64_t last_;  // units of the last hidden layer
};

// Calls work(model) for the model's precision, alone.
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
                    const TowerArrays* gradients, float* deep_gradient, float* wide_gradient, float* result) {
  return dense::with_model(*shape, *parameters, *batch, [&](auto& model) {
    return model.backward(*gradients, deep_gradient, wide_gradient, result);
  });
}

}  // extern "C"
