// The tower's first layer on a CPU, from the distinct rows of a batch instead of the rows of each of its positions.
//
//     y = relu(x W + n F), perhaps with dropout      x [B, C * D]: in field f of batch row b the row E[index[b, f]]
//
// A distinct field's rows are multiplied once each. Forward P_u = E_u W_f and a sum over fields of P's rows; backward
// G_u, the sum of dz over u's positions, then dE_u = G_u W_f^T and dW_f = E_f^T G_f. P and G are made by blocks of
// columns, so that they stay small. A direct field's rows are copied to their positions before the product, and its row
// gradients summed after it: less work where ids hardly repeat. Both are the same function up to the order of sums.
//
// The form of the operators, their precisions and threads are as in dense_layer.h.
//
// Letters: B rows of the batch, C fields, D width of a row, U distinct rows, grouped by field, H width out, N columns
// of n.

#ifndef DISTINCT_LAYER_H_
#define DISTINCT_LAYER_H_

#include "dense_layer.h"

#if defined(__cplusplus)
extern "C" {
#endif

// E [capacity >= U, D], W [C * D, H], n [B, N], F [N, H], index int32 [B, C], fields int32 [2 * C + 1], noise int32 [3]
// -> y [B, H]
//
// The rows of field f are fields[f] ... fields[f + 1] - 1, so fields[C] is U; it is distinct if fields[C + 1 + f] is
// not 0. `noise` is as in dense_layer.h; with 0 for the share dropped there is no dropout.
DENSE_LAYER_OPERATOR(distinct_forward_float32);
DENSE_LAYER_OPERATOR(distinct_forward_bfloat16);

// dy [B, H], y [B, H], E, W, n, index, fields, noise -> dE [capacity, D], 0 from row U on, dW [C * D, H], dF [N, H]
DENSE_LAYER_OPERATOR(distinct_backward_float32);
DENSE_LAYER_OPERATOR(distinct_backward_bfloat16);

// Wide rows [capacity] and index -> their sums over the fields of each batch row [B], in the order of fields.
DENSE_LAYER_OPERATOR(sum_rows_forward);

// The sums' gradient [B], wide rows and index -> the rows' gradient [capacity], summed in the order of positions.
DENSE_LAYER_OPERATOR(sum_rows_backward);

// The rows that `ids` int64 [B, C] look up: `index` int32 [B, C] as above and `starts` int32 [C + 1], with `rows` int64
// [B * C], of which starts[C] are set: their ids. A field's rows are in the order of first position. Returns 0, or
// dnnl_out_of_memory.
DENSE_LAYER_API int distinct_rows(const int64_t* ids, int64_t batch, int64_t num_fields, int64_t* rows, int32_t* index,
                                  int32_t* starts);

#if defined(__cplusplus)
}
#endif

#endif  // DISTINCT_LAYER_H_
