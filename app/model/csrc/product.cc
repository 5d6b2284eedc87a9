#include "product.h"

#include <array>
#include <map>
#include <utility>

// This declaration is from dnnl_threadpool.h, whose other declarations need oneDNN's own build settings. MindSpore's
// oneDNN is built for a thread pool. A primitive that is created without one assumes `max_concurrency` threads.
extern "C" dnnl_status_t dnnl_threadpool_interop_set_max_concurrency(int max_concurrency);

namespace dense {
namespace {

using dnnl::memory;

// Everything that a compiled product depends on.
using Key = std::array<std::int64_t, 12>;

// A compiled product, and the objects that pass its matrices. Creating these objects takes microseconds.
struct Product {
  dnnl::matmul primitive;
  std::array<memory, 3> matrices;            // A, B and C, without data
  std::array<dnnl_exec_arg_t, 3> arguments;  // the arguments for A, B and C

  Product(const dnnl::matmul& compiled, std::array<memory, 3> of)
      : primitive(compiled),
        matrices(std::move(of)),
        arguments{{{DNNL_ARG_SRC, matrices[0].get()},
                   {DNNL_ARG_WEIGHTS, matrices[1].get()},
                   {DNNL_ARG_DST, matrices[2].get()}}} {}
};

// The state of a thread that runs products. Each thread has its own primitives, because a primitive owns scratch
// memory.
struct Worker {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Product> products;

  Worker() { dnnl_threadpool_interop_set_max_concurrency(1); }
};

memory::desc describe(std::int64_t rows, std::int64_t columns, memory::data_type type, const Matrix& matrix) {
  return memory::desc({rows, columns}, type, memory::dims{matrix.row_stride, matrix.column_stride});
}

dnnl::matmul compile(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b, const memory::desc& c,
                     Finish finish) {
  dnnl::primitive_attr attributes;
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);  // compute in float32 whatever the environment says
  dnnl::post_ops steps;
  if (finish != Finish::kStore) steps.append_sum(1.0f);
  if (finish == Finish::kAddRelu) steps.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  attributes.set_post_ops(steps);
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine, a, b, c, attributes));
}

}  // namespace

void multiply(const Shape& shape, memory::data_type type, const Matrix& a, const Matrix& b, const Matrix& c,
              Finish finish, memory::data_type result) {
  thread_local Worker worker;
  const Key key{shape.rows,   shape.columns, shape.inner,  static_cast<std::int64_t>(type),
                a.row_stride, a.column_stride, b.row_stride, b.column_stride,
                c.row_stride, c.column_stride, static_cast<std::int64_t>(finish), static_cast<std::int64_t>(result)};
  auto found = worker.products.find(key);
  if (found == worker.products.end()) {
    const memory::desc a_desc = describe(shape.rows, shape.inner, type, a);
    const memory::desc b_desc = describe(shape.inner, shape.columns, type, b);
    const memory::desc c_desc = describe(shape.rows, shape.columns, result, c);
    const dnnl::matmul compiled = compile(worker.engine, a_desc, b_desc, c_desc, finish);
    const auto empty = [&](const memory::desc& desc) { return memory(desc, worker.engine, DNNL_MEMORY_NONE); };
    std::array<memory, 3> matrices{empty(a_desc), empty(b_desc), empty(c_desc)};
    found = worker.products.emplace(key, Product(compiled, std::move(matrices))).first;
  }
  Product& product = found->second;
  const std::array<void*, 3> data{a.data, b.data, c.data};
  for (std::size_t i = 0; i < data.size(); ++i) product.matrices[i].set_data_handle(data[i]);
  dnnl::error::wrap_c_api(dnnl_primitive_execute(product.primitive.get(), worker.stream.get(),
                                                 static_cast<int>(product.arguments.size()), product.arguments.data()),
                          "could not execute a product");
}

}  // namespace dense
