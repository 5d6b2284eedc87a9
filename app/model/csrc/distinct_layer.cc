#include "distinct_layer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#include "distinct_sums.h"
#include "elementwise.h"
#include "product.h"
#include "tasks.h"

namespace dense {
namespace {

constexpr std::int64_t kRowsPerTask = 512;  // batch rows, or rows of a field, per task
// The number of rows of a field is padded to a multiple of this, so that oneDNN need not compile a product for every
// number of rows.
constexpr std::int64_t kRowStep = 16;
constexpr std::int64_t kBlockBytes = 1024;  // bytes of one row in a block of P or G
constexpr std::int64_t kSumColumns = 64;    // columns of G that one thread sums, so that they stay in its cache
constexpr std::int64_t kLineFloats = 16;
constexpr std::int64_t kNumericPerTask = 128;  // numeric inputs per task of dF
constexpr std::size_t kHugePage = std::size_t{1} << 21;

// Scratch memory on huge pages, since the sums access it in the order of ids. Its content is lost when it grows.
class HugeScratch {
 public:
  void* room(std::size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
      memory_.reset(std::aligned_alloc(kHugePage, rounded));
      if (!memory_) throw std::bad_alloc();
      madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // only a hint
      bytes_ = rounded;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

template <typename T>
T* room(HugeScratch& scratch, std::int64_t size) {
  return static_cast<T*>(scratch.room(static_cast<std::size_t>(std::max<std::int64_t>(size, 1)) * sizeof(T)));
}

struct Sizes {
  std::int64_t rows, fields, width, out, numeric, capacity;  // B, C, D, H, N
};

// The distinct rows of one field: where they lie in E, the matrix of all distinct rows of the batch (`first`, `count`),
// and where they lie in the scratch matrices, in which their number is padded to a multiple of kRowStep.
struct Field {
  std::int64_t first, count, padded_first, padded_count;
};

// The rows of one task: `count` rows of field `field`, from row `first` of the scratch matrices on.
struct Block {
  std::int64_t field, first, count;
};

// Where the distinct rows of each field of a batch lie in the scratch matrices, and which fields are distinct (each row
// is multiplied once) or direct (rows are copied to their positions first).
struct Layout {
  Layout(const Sizes& sizes, const std::int32_t* index, const std::int32_t* starts) {
    distinct.index = direct.index = index;
    distinct.num_fields = direct.num_fields = sizes.fields;
    for (std::int64_t f = 0; f < sizes.fields; ++f) {
      const std::int64_t count = starts[f + 1] - starts[f];
      fields.push_back({starts[f], count, num_padded, num_blocks(count, kRowStep) * kRowStep});
      Places& places = starts[sizes.fields + 1 + f] != 0 ? distinct : direct;
      places.fields.push_back(static_cast<std::int32_t>(f));
      places.shifts.push_back(static_cast<std::int32_t>(num_padded - starts[f]));
      if (&places == &distinct) add_blocks(f);
      num_padded += fields.back().padded_count;
    }
  }

  void add_blocks(std::int64_t f) {
    const Field& field = fields[static_cast<std::size_t>(f)];
    for (std::int64_t first = 0; first < field.padded_count; first += kRowsPerTask) {
      blocks.push_back({f, field.padded_first + first, std::min(kRowsPerTask, field.padded_count - first)});
    }
  }

  const Field& operator[](std::int64_t f) const { return fields[static_cast<std::size_t>(f)]; }

  std::vector<Field> fields;
  std::vector<Block> blocks;  // tasks of the distinct fields
  Places distinct, direct;
  std::int64_t num_padded = 0;
};

void convert(const float* from, std::int64_t size, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
}
void convert(const float* from, std::int64_t size, BFloat16* to) { round_values(from, size, to); }

// The first layer for one batch. Its products take `Input`: float, or BFloat16 rounded from float.
template <typename Input>
class DistinctLayer {
 public:
  DistinctLayer(const Sizes& sizes, const std::int32_t* index, const std::int32_t* starts, const Dropout& dropout)
      : s_(sizes), layout_(sizes, index, starts), dropout_(dropout) {}

  int forward(const float* rows, float* weights, float* n, float* numeric_weights, float* y) {
    prepare(rows, weights);
    int status = multiply_direct(n, numeric_weights, y);
    for (std::int64_t c = 0; c < s_.out && status == 0; c += kColumns) {
      status = multiply_distinct(c);
      if (status == 0) status = sum_products(c, y);
    }
    return status == 0 && dropout_.threshold != 0 ? drop(y) : status;
  }

  int backward(const float* dy, const float* y, const float* rows, float* weights, float* n, float* drows, float* dw,
               float* df) {
    prepare(rows, weights);
    static std::vector<Input> dz_buffer;
    static HugeScratch gradient_scratch;
    Input* const dz = dense::room(dz_buffer, s_.rows * s_.out);
    float* const gradients = room<float>(gradient_scratch, layout_.num_padded * s_.width);
    int status = input_gradient(dy, y, dz, gradients);
    if (status == 0) status = direct_weight_gradients(dz, n, dw, df);
    for (std::int64_t c = 0; c < s_.out && status == 0; c += kColumns) {
      status = sum_gradients(dz, c);
      if (status == 0) status = multiply_gradients(c, gradients, dw);
    }
    return status == 0 ? copy_gradients(gradients, drows) : status;
  }

 private:
  static constexpr bool kRounds = std::is_same_v<Input, BFloat16>;
  static constexpr auto kType = kRounds ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  static constexpr std::int64_t kColumns = kBlockBytes / static_cast<std::int64_t>(sizeof(Input));

  std::int64_t columns_from(std::int64_t first) const { return std::min(kColumns, s_.out - first); }
  std::int64_t num_direct() const { return static_cast<std::int64_t>(layout_.direct.fields.size()); }
  std::int64_t direct_width() const { return num_direct() * s_.width; }

  // Copy the distinct rows, padded, and the weights W into scratch matrices of type Input (float or bfloat16).
  void prepare(const float* rows, float* weights) {
    static HugeScratch row_scratch, block_scratch;
    static std::vector<Input> weights_buffer, direct_buffer;
    rows_ = room<Input>(row_scratch, layout_.num_padded * s_.width);
    block_ = room<Input>(block_scratch, layout_.num_padded * kColumns);
    if constexpr (!kRounds) weights_ = weights;
    if constexpr (kRounds) weights_ = dense::room(weights_buffer, s_.fields * s_.width * s_.out);
    direct_weights_ = dense::room(direct_buffer, direct_width() * s_.out);
    const std::int64_t size = s_.width * s_.out;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
    for (std::int64_t f = 0; f < s_.fields; ++f) {
      const Field& field = layout_[f];
      Input* const to = rows_ + field.padded_first * s_.width;
      convert(rows + field.first * s_.width, field.count * s_.width, to);
      std::fill(to + field.count * s_.width, to + field.padded_count * s_.width, Input{0});
      if constexpr (kRounds) convert(weights + f * size, size, weights_ + f * size);
    }
    for (std::int64_t i = 0; i < num_direct(); ++i) {
      const Input* const from = weights_ + layout_.direct.fields[static_cast<std::size_t>(i)] * size;
      std::copy(from, from + size, direct_weights_ + i * size);
    }
  }

  // Return the row of direct field i at batch row b.
  Input* direct_row(std::int64_t b, std::int64_t i) const {
    const Places& direct = layout_.direct;
    const auto at = static_cast<std::size_t>(i);
    return rows_ + (direct.index[b * s_.fields + direct.fields[at]] + direct.shifts[at]) * s_.width;
  }

  // Return the inputs x [rows, count * D] that the direct fields first ... first + count - 1 give the layer at the
  // batch rows b ... b + rows - 1: the table row of each field, side by side.
  Input* direct_inputs(std::int64_t b, std::int64_t rows, std::int64_t first, std::int64_t count) const {
    thread_local std::vector<Input> buffer;
    Input* const x = dense::room(buffer, rows * count * s_.width);
    Input* to = x;
    for (std::int64_t row = b; row < b + rows; ++row) {
      for (std::int64_t i = first; i < first + count; ++i, to += s_.width) {
        const Input* const from = direct_row(row, i);
        std::copy(from, from + s_.width, to);
      }
    }
    return x;
  }

  // Call task(first, rows) for each block of `rows` batch rows, from batch row `first` on.
  template <typename Task>
  int run_on_rows(const Task& task) const {
    return run_tasks(num_blocks(s_.rows, kRowsPerTask), [&](std::int64_t i) {
      task(i * kRowsPerTask, std::min(kRowsPerTask, s_.rows - i * kRowsPerTask));
    });
  }

  // Set y to n F (the numeric inputs multiplied by their weights) + x W for the direct fields.
  int multiply_direct(float* n, float* numeric_weights, float* y) const {
    return run_on_rows([&](std::int64_t first, std::int64_t rows) {
      const Matrix target = row_major(y + first * s_.out, s_.out);
      multiply({rows, s_.out, s_.numeric}, dnnl::memory::data_type::f32, row_major(n + first * s_.numeric, s_.numeric),
               row_major(numeric_weights, s_.out), target, Finish::kStore);
      if (num_direct() == 0) return;
      multiply({rows, s_.out, direct_width()}, kType,
               row_major(direct_inputs(first, rows, 0, num_direct()), direct_width()),
               row_major(direct_weights_, s_.out), target, Finish::kAdd);
    });
  }

  // Compute P, the product of each distinct row with its field's block of W, for the distinct fields. Only the columns
  // of the block that begins at column c are computed.
  int multiply_distinct(std::int64_t c) const {
    return run_tasks(static_cast<std::int64_t>(layout_.blocks.size()), [&](std::int64_t i) {
      const Block& block = layout_.blocks[static_cast<std::size_t>(i)];
      multiply({block.count, columns_from(c), s_.width}, kType, row_major(rows_ + block.first * s_.width, s_.width),
               row_major(weights_ + block.field * s_.width * s_.out + c, s_.out),
               row_major(block_ + block.first * kColumns, kColumns), Finish::kStore, kType);
    });
  }

  int sum_products(std::int64_t c, float* y) const {
    return run_on_rows([&](std::int64_t first, std::int64_t rows) {
      gather_sum(Columns<const Input>{block_, kColumns}, layout_.distinct, first, rows, columns_from(c), {y + c, s_.out});
    });
  }

  int drop(float* y) const {
    std::vector<std::uint32_t> hashes(static_cast<std::size_t>(s_.out));
    unit_hashes(s_.out, hashes.data());
    return run_on_rows([&](std::int64_t first, std::int64_t rows) {
      drop_units(y + first * s_.out, rows, s_.out, dropout_, first, hashes.data());
    });
  }

  // Compute dz, the gradient before the ReLU: dy where y > 0, else 0, scaled with dropout. Also compute the gradients
  // of the direct fields' distinct rows.
  int input_gradient(const float* dy, const float* y, Input* dz, float* gradients) const {
    static HugeScratch scratch;
    float* const dx = room<float>(scratch, num_direct() == 0 ? 0 : s_.rows * direct_width());
    const float scale = dropout_.threshold == 0 ? 1.0f : dropout_.scale();
    const int status = run_on_rows([&](std::int64_t first, std::int64_t rows) {
      const std::int64_t start = first * s_.out;
      relu_gradient(dy + start, y + start, rows * s_.out, scale, dz + start);
      if (num_direct() == 0) return;
      multiply({rows, direct_width(), s_.out}, kType, row_major(dz + start, s_.out),
               transposed(direct_weights_, s_.out), row_major(dx + first * direct_width(), direct_width()),
               Finish::kStore);
    });
    return status != 0 ? status : run_tasks(num_direct(), [&](std::int64_t i) { sum_direct(dx, i, gradients); });
  }

  void sum_direct(const float* dx, std::int64_t i, float* gradients) const {
    const auto at = static_cast<std::size_t>(i);
    const Places one{layout_.direct.index, s_.fields, {layout_.direct.fields[at]}, {layout_.direct.shifts[at]}};
    const Field& field = layout_[layout_.direct.fields[at]];
    std::fill_n(gradients + field.padded_first * s_.width, field.padded_count * s_.width, 0.0f);
    scatter_sum(Columns<const float>{dx + i * s_.width, direct_width()}, one, s_.rows, s_.width,
                {gradients, s_.width});
  }

  // Compute the gradients dF = n^T dz of the numeric inputs' weights, and dW of the direct fields' weights. A task is a
  // block of rows of dF, or one direct field.
  int direct_weight_gradients(Input* dz, float* n, float* dw, float* df) const {
    const std::int64_t num_few = num_blocks(s_.numeric, kNumericPerTask);
    return run_tasks(num_few + num_direct(), [&](std::int64_t task) {
      if (task < num_few) {
        const std::int64_t from = task * kNumericPerTask, count = std::min(kNumericPerTask, s_.numeric - from);
        thread_local std::vector<Input> buffer;
        Input* const inputs = dense::room(buffer, s_.rows * count);
        for (std::int64_t row = 0; row < s_.rows; ++row) convert(n + row * s_.numeric + from, count, inputs + row * count);
        multiply({count, s_.out, s_.rows}, kType, transposed(inputs, count), row_major(dz, s_.out),
                 row_major(df + from * s_.out, s_.out), Finish::kStore);
        return;
      }
      const std::int64_t i = task - num_few, field = layout_.direct.fields[static_cast<std::size_t>(i)];
      multiply({s_.width, s_.out, s_.rows}, kType, transposed(direct_inputs(0, s_.rows, i, 1), s_.width),
               row_major(dz, s_.out), row_major(dw + field * s_.width * s_.out, s_.out), Finish::kStore);
    });
  }

  // For each distinct row of the distinct fields, compute G, the sum of dz over the row's positions, for the columns of
  // the block that begins at column c. A task sums some of these columns, in the order of batch rows.
  int sum_gradients(const Input* dz, std::int64_t c) const {
    const std::int64_t columns = columns_from(c);
    const std::int64_t lines = num_blocks(columns, kLineFloats * num_threads);
    const std::int64_t step = std::min(kSumColumns, lines * kLineFloats);
    return run_tasks(num_blocks(columns, step), [&](std::int64_t task) {
      const std::int64_t first = task * step;
      sum_columns({dz + c + first, s_.out}, first, std::min(step, columns - first));
    });
  }

  void sum_columns(const Columns<const Input>& dz, std::int64_t first, std::int64_t columns) const {
    static thread_local HugeScratch scratch;
    Columns<float> sums;
    if constexpr (kRounds) sums = {room<float>(scratch, layout_.num_padded * columns), columns};
    if constexpr (!kRounds) sums = {block_ + first, kColumns};
    for (std::int64_t u = 0; u < layout_.num_padded; ++u) std::fill_n(sums.data + u * sums.stride, columns, 0.0f);
    scatter_sum(dz, layout_.distinct, s_.rows, columns, sums);
    if constexpr (kRounds) {
      for (std::int64_t u = 0; u < layout_.num_padded; ++u) {
        round_values(sums.data + u * columns, columns, block_ + u * kColumns + first);
      }
    }
  }

  // For the distinct fields and the block of columns that begins at c: add G W^T to the gradients dE of the distinct
  // rows, and compute the gradients dW = E^T G of the weights.
  int multiply_gradients(std::int64_t c, float* gradients, float* dw) const {
    const std::int64_t num_fields = static_cast<std::int64_t>(layout_.distinct.fields.size());
    const std::int64_t num_tasks = num_fields + static_cast<std::int64_t>(layout_.blocks.size());
    return run_tasks(num_tasks, [&](std::int64_t task) {
      if (task < num_fields) {
        weight_gradient(layout_.distinct.fields[static_cast<std::size_t>(task)], c, dw);
        return;
      }
      const Block& block = layout_.blocks[static_cast<std::size_t>(task - num_fields)];
      multiply({block.count, s_.width, columns_from(c)}, kType, row_major(block_ + block.first * kColumns, kColumns),
               transposed(weights_ + block.field * s_.width * s_.out + c, s_.out),
               row_major(gradients + block.first * s_.width, s_.width), c == 0 ? Finish::kStore : Finish::kAdd);
    });
  }

  void weight_gradient(std::int64_t f, std::int64_t c, float* dw) const {
    const Matrix target = row_major(dw + f * s_.width * s_.out + c, s_.out);
    const Field& field = layout_[f];
    if (field.count == 0) {
      for (std::int64_t d = 0; d < s_.width; ++d) {
        std::fill_n(dw + (f * s_.width + d) * s_.out + c, columns_from(c), 0.0f);
      }
    }
    for (std::int64_t first = 0; first < field.padded_count; first += kRowsPerTask) {
      const std::int64_t row = field.padded_first + first;
      multiply({s_.width, columns_from(c), std::min(kRowsPerTask, field.padded_count - first)}, kType,
               transposed(rows_ + row * s_.width, s_.width), row_major(block_ + row * kColumns, kColumns), target,
               first == 0 ? Finish::kStore : Finish::kAdd);
    }
  }

  int copy_gradients(const float* gradients, float* drows) const {
    const std::int64_t num_rows = layout_.fields.back().first + layout_.fields.back().count;
    return run_tasks(s_.fields + 1, [&](std::int64_t f) {
      if (f == s_.fields) {
        std::fill(drows + num_rows * s_.width, drows + s_.capacity * s_.width, 0.0f);
        return;
      }
      const Field& field = layout_[f];
      convert(gradients + field.padded_first * s_.width, field.count * s_.width, drows + field.first * s_.width);
    });
  }

  Sizes s_;
  Layout layout_;
  Dropout dropout_;
  Input* rows_ = nullptr;            // E, padded
  Input* weights_ = nullptr;         // W
  Input* direct_weights_ = nullptr;  // the rows of W for direct fields
  Input* block_ = nullptr;           // a block of columns of P or G, padded
};

template <typename Input>
int run_distinct_forward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Sizes sizes = {shapes[4][0], shapes[4][1], shapes[0][1], shapes[1][1], shapes[2][1], shapes[0][0]};
  return run([&] {
    DistinctLayer<Input> layer(sizes, static_cast<std::int32_t*>(params[4]), static_cast<std::int32_t*>(params[5]),
                               read_noise(params[6]));
    return layer.forward(p[0], p[1], p[2], p[3], p[7]);
  });
}

template <typename Input>
int run_distinct_backward(void** params, int64_t** shapes) {
  const std::lock_guard<std::mutex> lock(layer_mutex);
  float** const p = reinterpret_cast<float**>(params);
  const Sizes sizes = {shapes[5][0], shapes[5][1], shapes[2][1], shapes[3][1], shapes[4][1], shapes[2][0]};
  return run([&] {
    DistinctLayer<Input> layer(sizes, static_cast<std::int32_t*>(params[5]), static_cast<std::int32_t*>(params[6]),
                               read_noise(params[7]));
    return layer.backward(p[0], p[1], p[2], p[3], p[4], p[8], p[9], p[10]);
  });
}

}  // namespace
}  // namespace dense

extern "C" {

int distinct_forward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_distinct_forward<float>(params, shapes);
}

int distinct_forward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_distinct_forward<dense::BFloat16>(params, shapes);
}

int distinct_backward_float32(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_distinct_backward<float>(params, shapes);
}

int distinct_backward_bfloat16(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  return dense::run_distinct_backward<dense::BFloat16>(params, shapes);
}

int sum_rows_forward(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  const float* const rows = static_cast<const float*>(params[0]);
  const std::int32_t* index = static_cast<const std::int32_t*>(params[1]);
  float* const sums = static_cast<float*>(params[2]);
  for (std::int64_t b = 0; b < shapes[1][0]; ++b) {
    float sum = 0.0f;
    for (std::int64_t f = 0; f < shapes[1][1]; ++f) sum += rows[*index++];
    sums[b] = sum;
  }
  return 0;
}

int sum_rows_backward(int, void** params, int*, int64_t** shapes, const char**, void*, void*) {
  const float* const gradient = static_cast<const float*>(params[0]);
  const std::int32_t* index = static_cast<const std::int32_t*>(params[2]);
  float* const rows = static_cast<float*>(params[3]);
  std::fill_n(rows, shapes[1][0], 0.0f);
  for (std::int64_t b = 0; b < shapes[2][0]; ++b) {
    for (std::int64_t f = 0; f < shapes[2][1]; ++f) rows[*index++] += gradient[b];
  }
  return 0;
}

}  // extern "C"
