#include "dense_step.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "elementwise.h"
#include "tasks.h"
#include "tower_step.h"

namespace dense {
namespace {

constexpr std::int64_t kValuesPerTask = 1 << 14;  // so that the values of four arrays fit into the second-level cache
// Smallest learning rate of FTRL (LEAST_FTRL_RATE in app/tables/optimizers.py). With a lower rate, a step changes
// nothing.
constexpr float kLeastFtrlRate = 0x1p-40f;

// The values that one task processes: `size` values of array number `array`, from value `first` on.
struct Chunk {
  int array;
  std::int64_t first, size;
};

// Cut the values of all arrays into chunks of at most kValuesPerTask, one for each task.
std::vector<Chunk> cut(int num_arrays, const int* num_dims, int64_t* const* shapes) {
  std::vector<Chunk> chunks;
  for (int array = 0; array < num_arrays; ++array) {
    std::int64_t size = 1;
    for (int i = 0; i < num_dims[array]; ++i) size *= shapes[array][i];
    for (std::int64_t first = 0; first < size; first += kValuesPerTask) {
      chunks.push_back({array, first, std::min(kValuesPerTask, size - first)});
    }
  }
  return chunks;
}

// Call task(number, chunk) for each chunk, on all threads if there are enough values.
template <typename Task>
int run_chunks(const std::vector<Chunk>& chunks, const Task& task) {
  std::int64_t size = 0;
  for (const Chunk& chunk : chunks) size += chunk.size;
  return run_tasks(static_cast<std::int64_t>(chunks.size()), [&](std::int64_t number) {
    task(static_cast<std::size_t>(number), chunks[static_cast<std::size_t>(number)]);
  }, !is_worth_threads(size));
}

struct AdamStep {
  float beta1, beta2, epsilon, factor;  // factor of the gradients
  float keep;                           // factor of the weights: 1 - learning rate * weight decay
  float rate;                           // learning rate multiplied by both bias corrections
};

// Operations, their order and the use of FMA are those of MindSpore 2.10's Adam on a CPU with FMA, so that runs keep
// their bits. That is why the last values, which do not fill a vector of 8, are computed in double.
ANY_MACHINE void take_step(const AdamStep& step, std::int64_t size, float* weights, float* first, float* second,
                           const float* gradients) {
  const AdamStep s = step;
  const float rest1 = 1.0f - s.beta1, rest2 = 1.0f - s.beta2;
  for (std::int64_t i = 0; i < size; ++i) {
    const float gradient = gradients[i] * s.factor;
    first[i] = std::fma(gradient - first[i], rest1, first[i]);
    second[i] = std::fma(std::fma(gradient, gradient, -second[i]), rest2, second[i]);
  }
  const std::int64_t in_vectors = size - size % 8;
  for (std::int64_t i = 0; i < in_vectors; ++i) {
    weights[i] = weights[i] * s.keep - s.rate * first[i] / (std::sqrt(second[i]) + s.epsilon);
  }
  for (std::int64_t i = in_vectors; i < size; ++i) {
    const double root = std::sqrt(static_cast<double>(second[i]));
    weights[i] = static_cast<float>(weights[i] * s.keep - static_cast<double>(s.rate * first[i]) / (root + s.epsilon));
  }
}

// to[i] += factor * from[i], with two roundings. This file is compiled without fused operations.
ANY_MACHINE void add_rounded(float factor, const float* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

}  // namespace
}  // namespace dense

extern "C" {

int all_finite(int num_params, void** params, int* num_dims, int64_t** shapes, const char**, void*, void*) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  return dense::run([&] {
    const std::vector<dense::Chunk> chunks = dense::cut(num_params - 2, num_dims + 1, shapes + 1);
    std::vector<char> good(chunks.size());
    const int status = dense::run_chunks(chunks, [&](std::size_t number, const dense::Chunk& chunk) {
      good[number] = dense::all_below(p[1 + chunk.array] + chunk.first, chunk.size, p[0][0]);
    });
    p[num_params - 1][0] = std::find(good.begin(), good.end(), 0) == good.end() ? 1.0f : 0.0f;
    return status;
  });
}

int dense_adam(int num_params, void** params, int* num_dims, int64_t** shapes, const char**, void*, void*) {
  constexpr int kBefore = 4;  // number of inputs before the weights
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const int count = (num_params - kBefore - 1) / 4;
  const float* const constants = p[0];
  *p[2] *= constants[0];
  *p[3] *= constants[1];
  const dense::AdamStep step{constants[0], constants[1], constants[2], constants[3], 1.0f - *p[1] * constants[4],
                             *p[1] * std::sqrt(1.0f - *p[3]) / (1.0f - *p[2])};
  return dense::run([&] {
    const std::vector<dense::Chunk> chunks = dense::cut(count, num_dims + kBefore, shapes + kBefore);
    return dense::run_chunks(chunks, [&](std::size_t, const dense::Chunk& chunk) {
      float* const* const arrays = p + kBefore + chunk.array;
      dense::take_step(step, chunk.size, arrays[0] + chunk.first, arrays[count] + chunk.first,
                       arrays[2 * count] + chunk.first, arrays[3 * count] + chunk.first);
    });
  });
}

void dense_products(int64_t num_ranks, int64_t num_numeric, int64_t embedding_dim, int64_t width, const float* rows,
                    const float* factors, float* sums) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  dense::run_tasks(num_numeric * embedding_dim, [&](std::int64_t i) {
    float* const sum = sums + i * width;
    const float* factor = factors + i / embedding_dim * width;
    dense::set_multiple(rows[i], factor, width, sum);
    for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
      factor += num_numeric * width;
      dense::add_rounded(rows[i], factor, width, sum);
    }
  }, !dense::is_worth_threads(num_numeric * embedding_dim * width));
}

void dense_ftrl(int64_t size, float* rows, float* accumulators, float* linear, const float* gradients, float loss_scale,
                float learning_rate, float l1, float l2) {
  if (learning_rate < dense::kLeastFtrlRate) return;
  for (int64_t i = 0; i < size; ++i) {
    const float gradient = gradients[i] / loss_scale, accumulator = accumulators[i] + gradient * gradient;
    const float root = std::sqrt(accumulator);
    const float term = linear[i] + (gradient - (root - std::sqrt(accumulators[i])) / learning_rate * rows[i]);
    const float sign = static_cast<float>(term > 0.0f) - static_cast<float>(term < 0.0f);
    rows[i] = std::fabs(term) > l1 ? (sign * l1 - term) / (root / learning_rate + 2.0f * l2) : 0.0f;
    accumulators[i] = accumulator;
    linear[i] = term;
  }
}

}  // extern "C"
