// What a step does with all dense gradients together: one check of their values, one pass of Adam.
//
// MindSpore 2.10 runs some ten kernels for each parameter there, and on a small batch starting them takes longer than their work.
// The functions have the form of dense_layer.h's. Values are independent of each other, so the results are the same
// bits for any number of threads.

#ifndef DENSE_STEP_H_
#define DENSE_STEP_H_

#include "dense_layer.h"

#if defined(__cplusplus)
extern "C" {
#endif

// limit [1], then float32 arrays of any shapes -> [1]: 1 if every |value| < limit, else 0.
DENSE_LAYER_OPERATOR(all_finite);

// constants [5]: beta1, beta2, epsilon, the gradients' factor, weight decay; learning rate, beta1 ^ t, beta2 ^ t (t steps taken so far);
// then weights, first moments, second moments and gradients of P parameters, in four runs of P -> [1], of no meaning.
// Changes the powers, weights and moments where they are. With weight decay, weights are first multiplied by
// 1 - learning rate * weight decay.
DENSE_LAYER_OPERATOR(dense_adam);

#if defined(__cplusplus)
}
#endif

#endif  // DENSE_STEP_H_
