// Compute the tower's first layer on a CPU from the distinct rows of a batch instead of the rows of all positions.
//
//     y = relu(x W + n F), optionally with dropout      x [B, C * D]: field f of batch row b has the row E[index[b, f]]
//
// For a "distinct" field, each distinct row is multiplied once. The forward pass computes P_u = E_u W_f, and y is a
// sum over fields of rows of P. The backward pass computes G_u, the sum of dz over the positions of u, then dE_u =
// G_u W_f^T and dW_f = E_f^T G_f. P and G are computed in blocks of columns, so that they stay small. For a "direct"
// field, rows are copied to their positions before the product, and row gradients are summed after it. That is less
// work if ids hardly repeat. Both are the same function, apart from the order of sums.
//
// The form of the operators, their precisions and their threads are those of dense_layer.h.
//
// Array shapes are written with these letters: B rows of the batch, C fields, D width of a row, U distinct rows,
// grouped by field, H outputs, N columns of n.

#ifndef DISTINCT_LAYER_H_
#define DISTINCT_LAYER_H_

#include "dense_layer.h"

#if defined(__cplusplus)
extern "C" {
#endif

// E [capacity >= U, D], W [C * D, H], n [B, N], F [N, H], index int32 [B, C], fields int32 [2 * C + 1], noise int32
// [3] -> y [B, H]
//
// Field f has the rows fields[f] ... fields[f + 1] - 1, so fields[C] is U. It is distinct if fields[C + 1 + f] is
// not 0, else direct. `noise` is that of dense_layer.h. If its share of dropped units is 0, there is no dropout.
DENSE_LAYER_OPERATOR(distinct_forward_float32);
DENSE_LAYER_OPERATOR(distinct_forward_bfloat16);

// Compute the gradients of the loss with respect to E, W and F (dE, dW, dF) from that with respect to y (dy). The other
// inputs are those of the forward pass and its result y. Rows of dE from U on are 0.
//
// dy [B, H], y [B, H], E, W, n, index, fields, noise -> dE [capacity, D], dW [C * D, H], dF [N, H]
DENSE_LAYER_OPERATOR(distinct_backward_float32);
DENSE_LAYER_OPERATOR(distinct_backward_bfloat16);

// For each batch row, add up the wide rows (one weight each) of its fields, in the order of fields.
//
// wide rows [capacity], index -> sums [B]
DENSE_LAYER_OPERATOR(sum_rows_forward);

// For each wide row, add up the gradients of the sums to which it was added, in the order of positions.
//
// gradients of the sums [B], wide rows, index -> gradients of the wide rows [capacity]
DENSE_LAYER_OPERATOR(sum_rows_backward);

// Find the distinct rows that `ids` int64 [B, C] look up. The outputs are `index` int32 [B, C] as above, `starts`
// int32 [C + 1] with the first row of each field, and `rows` int64 [B * C], whose first starts[C] entries are the
// ids of the rows. The rows of a field are in the order of first positions. Return 0 or dnnl_out_of_memory.
DENSE_LAYER_API int distinct_rows(const int64_t* ids, int64_t batch, int64_t num_fields, int64_t* rows, int32_t* index,
                                  int32_t* starts);

#if defined(__cplusplus)
}
#endif

#endif  // DISTINCT_LAYER_H_
