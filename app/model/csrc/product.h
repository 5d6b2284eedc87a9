// Multiply matrices on one thread with oneDNN: C = A B, C + A B, or relu(C + A B).

#ifndef PRODUCT_H_
#define PRODUCT_H_

#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>

namespace dense {

// A matrix in memory. The element (row, column) is at row * row_stride + column * column_stride.
struct Matrix {
  void* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

enum class Finish {
  kStore,    // C = A B
  kAdd,      // C = C + A B
  kAddRelu,  // C = relu(C + A B)
};

struct Shape {
  std::int64_t rows, columns, inner;  // C is [rows, columns], A [rows, inner], B [inner, columns]
};

// Multiply on the calling thread. A and B have the data type `type`, C has `result`. Throws dnnl::error.
void multiply(const Shape& shape, dnnl::memory::data_type type, const Matrix& a, const Matrix& b, const Matrix& c,
              Finish finish, dnnl::memory::data_type result = dnnl::memory::data_type::f32);

}  // namespace dense

#endif  // PRODUCT_H_
