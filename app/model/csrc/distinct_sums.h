// Compute the two sums of a layer that multiplies each distinct row once, for a block of the layer's columns.
//
// Each value is summed in one order, by batch row or by field, so its bits depend neither on threads nor on blocks.
//
// Array shapes are written with these letters: B rows of the batch, C fields, U distinct rows of all fields.

#ifndef DISTINCT_SUMS_H_
#define DISTINCT_SUMS_H_

#include <cstdint>
#include <vector>

#include "elementwise.h"

namespace dense {

// The rows of some fields of the batch. Batch row b and field f have the row index[b * C + f] + (shift of f).
struct Places {
  const std::int32_t* index;  // [B, C]
  std::int64_t num_fields;    // C
  std::vector<std::int32_t> fields;
  std::vector<std::int32_t> shifts;  // the shift of each of `fields`
};

// Some columns of a matrix whose rows are `stride` values apart.
template <typename T>
struct Columns {
  T* data;
  std::int64_t stride;
};

// For the batch rows first ... first + rows - 1: add to y the rows of `products` that the batch row has in the fields
// of `places`, then apply relu. y points to batch row 0.
void gather_sum(const Columns<const float>& products, const Places& places, std::int64_t first, std::int64_t rows,
                std::int64_t columns, const Columns<float>& y);
void gather_sum(const Columns<const BFloat16>& products, const Places& places, std::int64_t first, std::int64_t rows,
                std::int64_t columns, const Columns<float>& y);

// Add row b of dz, for each batch row b, to those rows of `sums` that batch row b has in the fields of `places`.
void scatter_sum(const Columns<const float>& dz, const Places& places, std::int64_t rows, std::int64_t columns,
                 const Columns<float>& sums);
void scatter_sum(const Columns<const BFloat16>& dz, const Places& places, std::int64_t rows, std::int64_t columns,
                 const Columns<float>& sums);

}  // namespace dense

#endif  // DISTINCT_SUMS_H_
