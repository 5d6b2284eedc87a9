// The two sums of a layer that multiplies each distinct row once, over blocks of its columns. Each value is summed in
// one order, by batch row or by field, so its bits depend neither on threads nor on blocks.
//
// Letters: B rows of the batch, C fields, U distinct rows of all fields.

#ifndef DISTINCT_SUMS_H_
#define DISTINCT_SUMS_H_

#include <cstdint>
#include <vector>

#include "elementwise.h"

namespace dense {

// Where the rows of some of the batch's fields lie: that of batch row b and field f at row index[b * C + f] + shift of f.
struct Places {
  const std::int32_t* index;  // [B, C]
  std::int64_t num_fields;    // C
  std::vector<std::int32_t> fields;
  std::vector<std::int32_t> shifts;  // of each of `fields`
};

// Columns of a matrix whose rows are `stride` values apart.
template <typename T>
struct Columns {
  T* data;
  std::int64_t stride;
};

// y = relu(y + the sum over fields of `products`' rows), for batch rows first ... first + rows - 1; y is at row 0.
void gather_sum(const Columns<const float>& products, const Places& places, std::int64_t first, std::int64_t rows,
                std::int64_t columns, const Columns<float>& y);
void gather_sum(const Columns<const BFloat16>& products, const Places& places, std::int64_t first, std::int64_t rows,
                std::int64_t columns, const Columns<float>& y);

// Adds each row of dz [B] to the rows of its fields in `sums`.
void scatter_sum(const Columns<const float>& dz, const Places& places, std::int64_t rows, std::int64_t columns,
                 const Columns<float>& sums);
void scatter_sum(const Columns<const BFloat16>& dz, const Places& places, std::int64_t rows, std::int64_t columns,
                 const Columns<float>& sums);

}  // namespace dense

#endif  // DISTINCT_SUMS_H_
