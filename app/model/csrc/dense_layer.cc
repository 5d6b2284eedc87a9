#include "dense_layer.h"

#include <algorithm>

#include "layer.h"

namespace dense {
namespace {

template <typename Input>
int run_forward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Layer<Input> layer({shapes[0][0], shapes[0][1], shapes[1][1], shapes[2][1]});
  return run([&] { return layer.forward(p[0], p[1], p[2], p[3], p[4]); });
}

template <typename Input>
int run_backward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Layer<Input> layer({shapes[2][0], shapes[2][1], shapes[3][1], shapes[4][1]});
  return run([&] { return layer.backward(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]); });
}

template <typename Input>
int run_dropout_forward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Dropout dropout = read_noise(params[4]);
  const Layer<Input> layer({shapes[0][0], shapes[0][1], shapes[1][1], shapes[2][1]}, &dropout);
  return run([&] { return layer.forward(p[0], p[1], p[2], p[3], p[5]); });
}

template <typename Input>
int run_dropout_backward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Dropout dropout = read_noise(params[5]);
  const Layer<Input> layer({shapes[2][0], shapes[2][1], shapes[3][1], shapes[4][1]}, &dropout);
  return run([&] { return layer.backward(p[0], p[1], p[2], p[3], p[4], p[6], p[7], p[8]); });
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

int dropout_forward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_dropout_forward<float>(params, shapes);
}

int dropout_forward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_dropout_forward<dense::BFloat16>(params, shapes);
}

int dropout_backward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_dropout_backward<float>(params, shapes);
}

int dropout_backward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_dropout_backward<dense::BFloat16>(params, shapes);
}

}  // extern "C"
