// One hidden layer of the tower on a CPU, forward and backward, on the oneDNN that MindSpore ships.
//
//     y = relu(x W + n F)        n: numeric inputs and a 1 for the bias, F: their rows; perhaps with dropout
//
// MindSpore 2.10 runs each product, bias, ReLU and their gradients as a kernel of its own, each a pass over
// memory, and each product as one oneDNN call over its own thread pool. Here a task is a block of rows (or, of
// dW, of columns) on one thread, product and elementwise work together; and the inputs of the products can
// be bfloat16 on any core that oneDNN multiplies it on, not only where its math mode does (AMX).
//
// The layer's functions have the form of MindSpore's "aot" custom operators: params holds the inputs, then the outputs,
// all dense float32. They return 0, or a oneDNN status as a positive number.
// Blocks depend on the shapes alone, so the results are the same bits for any number of threads.
//
// Letters: B rows of the batch, K width in, H width out, N columns of n.

#ifndef DENSE_LAYER_H_
#define DENSE_LAYER_H_

#include <stdint.h>

#define DENSE_LAYER_API __attribute__((visibility("default")))

#if defined(__cplusplus)
extern "C" {
#endif

// Before the first call: how many threads the layers of this process run on.
DENSE_LAYER_API void dense_set_threads(int32_t num_threads);

#define DENSE_LAYER_OPERATOR(name)                                                                           \
  DENSE_LAYER_API int name(int num_params, void** params, int* num_dims, int64_t** shapes, const char** dtypes, \
                           void* stream, void* extra)

// x [B, K], W [K, H], n [B, N], F [N, H] -> y [B, H]
DENSE_LAYER_OPERATOR(dense_forward_float32);
DENSE_LAYER_OPERATOR(dense_forward_bfloat16);  // x and W are rounded for the product

// dy [B, H], y [B, H], x [B, K], W [K, H], n [B, N] -> dx [B, K], dW [K, H], dF [N, H]
DENSE_LAYER_OPERATOR(dense_backward_float32);
DENSE_LAYER_OPERATOR(dense_backward_bfloat16);  // x, W, n and dy (where y > 0) are rounded for the products

// The same with dropout, `noise` int32 [3] being a layer's of app/model/dropout.py: the units of y that stay are multiplied with
// 1 / (1 - share dropped), the others are 0.
// x [B, K], W [K, H], n [B, N], F [N, H], noise -> y [B, H]
DENSE_LAYER_OPERATOR(dropout_forward_float32);
DENSE_LAYER_OPERATOR(dropout_forward_bfloat16);

// dy [B, H], y [B, H], x [B, K], W [K, H], n [B, N], noise -> dx [B, K], dW [K, H], dF [N, H]
DENSE_LAYER_OPERATOR(dropout_backward_float32);
DENSE_LAYER_OPERATOR(dropout_backward_bfloat16);

#if defined(__cplusplus)
}
#endif

#endif  // DENSE_LAYER_H_
