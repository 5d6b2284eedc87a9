// Compute one hidden layer of the tower on a CPU, forward and backward, with the oneDNN library that MindSpore
// ships.
//
//     y = relu(x W + n F)        n: numeric inputs and a 1 for the bias, F: their weights; optionally with dropout
//
// MindSpore 2.10 runs each product, bias, ReLU and gradient as a kernel of its own. Each kernel is a pass over
// memory, and each product one oneDNN call on its own thread pool. Here a task is a block of rows (for dW: of
// columns) on one thread, and product and elementwise work are done together. The inputs of the products can be
// bfloat16 on any core for which oneDNN has bfloat16 products, not only where oneDNN's math mode supports them
// (AMX).
//
// The functions have the form of MindSpore's "aot" custom operators: params holds the inputs, then the outputs, all
// dense float32. They return 0, or a oneDNN status as a positive number. Blocks depend on shapes only, so the
// results have the same bits for any number of threads.
//
// Array shapes are written with these letters: B rows of the batch, K inputs, H outputs, N columns of n.

#ifndef DENSE_LAYER_H_
#define DENSE_LAYER_H_

#include <stdint.h>

#define DENSE_LAYER_API __attribute__((visibility("default")))

#if defined(__cplusplus)
extern "C" {
#endif

// Set the number of threads of all layers in this process. Call it before the first layer.
DENSE_LAYER_API void dense_set_threads(int32_t num_threads);

#define DENSE_LAYER_OPERATOR(name)                                                                           \
  DENSE_LAYER_API int name(int num_params, void** params, int* num_dims, int64_t** shapes, const char** dtypes, \
                           void* stream, void* extra)

// `noise` int32 [3] is one layer's row of DropoutNoise in app/model/dense_state.py. Units of y that stay are multiplied by
// 1 / (1 - share dropped), the others are 0. If the share is 0, there is no dropout.
//
// x [B, K], W [K, H], n [B, N], F [N, H], noise -> y [B, H]
DENSE_LAYER_OPERATOR(dense_forward_float32);
DENSE_LAYER_OPERATOR(dense_forward_bfloat16);  // rounds x and W for the product

// Compute the gradients of the loss with respect to x, W and F (dx, dW, dF) from that with respect to y (dy). The other
// inputs are those of the forward pass and its result y.
//
// dy [B, H], y [B, H], x [B, K], W [K, H], n [B, N], noise -> dx [B, K], dW [K, H], dF [N, H]
DENSE_LAYER_OPERATOR(dense_backward_float32);
DENSE_LAYER_OPERATOR(dense_backward_bfloat16);  // rounds x, W, n and dz (dy where y > 0) for the products

#if defined(__cplusplus)
}
#endif

#endif  // DENSE_LAYER_H_
