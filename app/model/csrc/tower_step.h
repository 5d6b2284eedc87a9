// The whole dense model on a CPU in one call: forward, losses, backward and the flag of finite values; or logits alone.
//
//     logit = wide row + b + x · w + tower([deep rows, x])         see app/model/wide_deep.py
//
// MindSpore 2.10 starts some forty kernels for a step of a tower of two layers, which on a small batch takes longer than their
// work. The hidden layers are those of dense_layer.h, with its bits. Sums over the batch are those of blocks of rows
// that depend on its size alone, then of the blocks in order: the same bits for any number of threads.
//
// Letters: B rows of the batch, K = C * D deep inputs, N numeric fields, D width of their rows, L hidden layers of H_i units.

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
  int64_t embedding_dim;  // D
  int64_t num_layers;     // L, at least 1
  const int64_t* widths;  // [L]
  int32_t bfloat16;       // not 0: the hidden layers' products round their inputs
  float loss_scale;
  float l2_coef;          // of the numeric fields' rows
  float label_smoothing;
  float largest_gradient;  // of a row that is finite
} TowerShape;

// Parameters of the model, or the gradients of each. The numeric fields' are not read if N is 0.
typedef struct {
  float* bias;            // [1]
  float* numeric_weight;  // [N]
  float* numeric_rows;    // [N, D]
  float* numeric_matrix;  // [N, D, H_0]
  float* const* matrices;  // [L + 1], [K, H_0], [H_0, H_1], ..., [H_L-1, 1]
  float* const* biases;    // [L], [H_i]
} TowerArrays;

typedef struct {
  float* deep;                   // [B, K]
  const float* wide;             // [B]
  const float* numeric;          // [B, N]
  const int32_t* noise;          // [L, 3] of app/model/dropout.py, null without dropout
  const float* labels;           // [B]
  const float* example_weights;  // [B]: parts in the loss
} TowerBatch;

// logits [B]; 0, or a oneDNN status above 0. Of the batch, noise, labels and example_weights are not read.
DENSE_LAYER_API int tower_logits(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch,
                                 float* logits);

// The gradients, times loss_scale, of all parameters, of deep [B, K] and of wide [B]; result [3]: the loss with the L2
// term of the numeric fields' rows, the cross-entropy alone, and 1 if all gradients, parameters and the loss are finite
// and the rows' gradients within largest_gradient, else 0. 0, or a oneDNN status above 0.
DENSE_LAYER_API int tower_gradients(const TowerShape* shape, const TowerArrays* parameters, const TowerBatch* batch,
                                    const TowerArrays* gradients, float* deep_gradient, float* wide_gradient,
                                    float* result);

// A step of FTRL on few values, as ftrl_step of app/tables/optimizers.py takes it, bit for bit; gradients are times
// loss_scale. Changes the three arrays [size] where they are.
DENSE_LAYER_API void dense_ftrl(int64_t size, float* rows, float* accumulators, float* linear, const float* gradients,
                                float loss_scale, float learning_rate, float l1, float l2);

#if defined(__cplusplus)
}
#endif

#endif  // TOWER_STEP_H_
