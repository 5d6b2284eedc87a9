// Compute the whole dense model on a CPU in one call: forward, losses, backward and the check of finite values, or
// only logits.
//
//     logit = wide row + b + x · w + tower([deep rows, x, v])      see app/model/wide_deep.py
//
// MindSpore 2.10 starts some forty kernels for a step of a tower of two layers. With a small batch this takes longer
// than their work. The hidden layers are those of dense_layer.h, with the same bits. Sums over the batch are
// computed for blocks of rows, whose size depends on the batch size only, then over the blocks in order. So the bits
// are the same for any number of threads.
//
// Array shapes are written with these letters: B rows of the batch, K = C * D deep inputs, N numeric fields, D width
// of their rows, M vector inputs v, L hidden layers with H_i units.

#ifndef TOWER_STEP_H_
#define TOWER_STEP_H_

#include <stdint.h>

#include "dense_layer.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct {
  int64_t num_rows;       // B
  int64_t num_inputs;     // K
  int64_t num_numeric;    // N, may be 0
  int64_t num_vector;     // M, may be 0
  int64_t embedding_dim;  // D
  int64_t num_layers;     // L, at least 1
  const int64_t* widths;  // [L]
  int32_t bfloat16;       // not 0: inputs of the hidden layers' products are rounded
  float loss_scale;
  float l2_coef;  // for the rows of numeric fields
  float label_smoothing;
  float largest_gradient;  // bound of the row gradients' absolute values
  float largest_summand;   // bound of the other gradients' absolute values, whose sum over the ranks must be finite
} TowerShape;

// Parameters of the model, or their gradients. If N is 0, the arrays of numeric fields are not used. If M is 0,
// vector_matrix is not used.
typedef struct {
  float* bias;             // [1]
  float* numeric_weight;   // [N]
  float* numeric_rows;     // [N, D]
  float* numeric_matrix;   // [N, D, H_0]
  float* vector_matrix;    // [M, H_0]
  float* const* matrices;  // [L + 1], [K, H_0], [H_0, H_1], ..., [H_L-1, 1]
  float* const* biases;    // [L], [H_i]
} TowerArrays;

typedef struct {
  float* deep;                   // [B, K]
  const float* wide;             // [B]
  const float* numeric;          // [B, N + M], numbers of the numeric fields, then vector inputs
  const int32_t* noise;          // [L, 3] from DropoutNoise in app/model/dense_state.py, null without dropout
  const float* labels;           // [B]
  const float* example_weights;  // [B] relative weights in the loss
} TowerBatch;

// Compute logits [B]. Return 0, or a oneDNN status above 0. noise, labels and example_weights of the batch are not
// used.
DENSE_LAYER_API int tower_logits(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch,
                                 float* logits);

// Compute the gradients, multiplied by loss_scale, of all parameters, of deep [B, K] and of wide [B]. result [3] is
// the loss with the L2 term of numeric rows, the cross-entropy alone, and a flag: 1 if all gradients, all parameters
// and the loss are finite and gradients are below their bounds, else 0. Return 0, or a oneDNN status above 0.
//
// Several ranks sum the gradients of the parameters while others are still being computed. For them, after_weights is
// the address of a function void(int64_t), which is called each time that more values of matrices[0] are known, with
// their number. Once all results but deep_gradient and the flag are known, it is called with INT64_MAX. Instead of
// numeric_matrix, they compute numeric_factor [N, H_0]: the gradient of numeric_matrix at [n, d] is numeric_rows[n, d]
// times row n of it (dense_products). For a single process, both are null.
DENSE_LAYER_API int tower_gradients(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch,
                                    const TowerArrays* gradients, float* numeric_factor, const void* after_weights,
                                    float* deep_gradient, float* wide_gradient, float* result);

// Compute the sum over R ranks of the gradient of numeric_matrix, sums [N, D, H_0], from rows [N, D] and the ranks'
// factors [R, N, H_0]. Each product is rounded, and the products are added in the order of ranks.
DENSE_LAYER_API void dense_products(int64_t num_ranks, int64_t num_numeric, int64_t embedding_dim, int64_t width,
                                    const float* rows, const float* factors, float* sums);

// Take one step of FTRL on a few values, bit for bit as ftrl_step in app/tables/optimizers.py does. gradients are
// multiplied by loss_scale. The three state arrays [size] are changed in place.
DENSE_LAYER_API void dense_ftrl(int64_t size, float* rows, float* accumulators, float* linear, const float* gradients,
                                float loss_scale, float learning_rate, float l1, float l2);

#if defined(__cplusplus)
}
#endif

#endif  // TOWER_STEP_H_
