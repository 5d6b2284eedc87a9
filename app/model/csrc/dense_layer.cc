#include "dense_layer.h"

#include <algorithm>

#include "layer.h"

namespace dense {
namespace {

template <typename Input>
LayerMemory<Input> memory;  // guarded by layer_mutex

// Return the address of `noise`, or null if it drops no units (threshold 0).
const Dropout* dropout_of(const Dropout& noise) { return noise.threshold == 0 ? nullptr : &noise; }

template <typename Input>
int run_forward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Dropout noise = read_noise(params[4]);
  return run([&] {
    const LayerSizes sizes{shapes[0][0], shapes[0][1], shapes[1][1], shapes[2][1]};
    const Layer<Input> layer(sizes, p[1], memory<Input>, dropout_of(noise));
    return run_blocks(sizes.rows, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      layer.forward(p[0], p[2], p[3], first, rows, p[5]);
    });
  });
}

template <typename Input>
int run_backward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Dropout noise = read_noise(params[5]);
  float *const dx = p[6], *const dw = p[7], *const df = p[8];
  return run([&] {
    const LayerSizes sizes{shapes[2][0], shapes[2][1], shapes[3][1], shapes[4][1]};
    const Layer<Input> layer(sizes, p[3], memory<Input>, dropout_of(noise));
    layer.prepare_backward();
    const int status = run_blocks(sizes.rows, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      layer.output_gradient(p[0] + first * sizes.out, p[1], first, rows);
      layer.input_gradient(first, rows, dx + first * sizes.in);
    });
    if (status != 0) return status;
    return run_tasks(layer.num_weight_tasks(), [&](std::int64_t task) {
      layer.weight_gradient(task, p[2], p[4], dw, df);
    });
  });
}

}  // namespace
}  // namespace dense

extern "C" {

void dense_set_threads(int32_t num_threads) {
  const std::lock_guard<std::mutex> lock(dense::layer_mutex);
  dense::num_threads = std::max(1, num_threads);
}

int dense_forward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_forward<float>(params, shapes);
}

int dense_forward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_forward<dense::BFloat16>(params, shapes);
}

int dense_backward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_backward<float>(params, shapes);
}

int dense_backward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_backward<dense::BFloat16>(params, shapes);
}

}  // extern "C"
