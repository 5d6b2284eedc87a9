// Process all dense gradients of a step together: one check of their values, and one pass of Adam.
//
// MindSpore 2.10 runs some ten kernels per parameter for this, and with a small batch starting them takes longer
// than their work. The functions have the form of those in dense_layer.h. Values are independent of each other, so
// the results have the same bits for any number of threads.

#ifndef DENSE_STEP_H_
#define DENSE_STEP_H_

#include "dense_layer.h"

#if defined(__cplusplus)
extern "C" {
#endif

// The inputs are limit [1], then float32 arrays of any shapes. The output [1] is 1 if the absolute values of all
// arrays' values are below the limit, else 0.
DENSE_LAYER_OPERATOR(all_finite);

// Take one step of Adam. The inputs are, in this order:
//   - constants [5]: beta1, beta2, epsilon, factor of the gradients, weight decay
//   - learning rate [1], beta1 ^ t [1], beta2 ^ t [1], where t is the number of steps so far
//   - the weights of P parameters, then their P first moments, P second moments and P gradients
// The powers, weights and moments are changed in place. With weight decay, weights are first multiplied by
// 1 - learning rate * weight decay. The output [1] has no meaning.
DENSE_LAYER_OPERATOR(dense_adam);

#if defined(__cplusplus)
}
#endif

#endif  // DENSE_STEP_H_
