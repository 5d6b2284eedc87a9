// Declare the kernels, which are compiled once for each instruction set, and the choice among the sets at run time.

#ifndef KERNELS_H_
#define KERNELS_H_

#include <cstdint>

#include "host_tables.h"
#include "storage/slots.h"

namespace host_tables {

// The initial values of untouched rows; see app/tables/initial.py.
struct InitialValues {
  std::uint64_t table_key;
  float scale;
  bool is_bfloat16;  // the deep states are bfloat16
  // for each HostTablesTable: number of the array, other than the row, that does not start at 0; -1 if there is none
  int array[2];
  float value[2];  // initial value of that array
};

// Set `row_slots` [count], which are zeros, to the initial state of `row_ids` [count]. Arrays that are marked in
// `written` are left alone. `written` has an entry for each slot, or is null if nothing was written.
using Initialize = void(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids,
                        const std::int32_t* row_slots, std::int64_t count, const WrittenArrays* written,
                        int num_threads);

// Copy `values` [count, width] into one state array of the distinct `slots` [count], and mark it in `written`, which
// has an entry for each slot or is null. Return whether all float values are finite.
using WriteRows = bool(const Slots& view, HostTablesTable table, int array, const std::int32_t* slots,
                       std::int64_t count, const char* values, WrittenArrays* written, int num_threads);

// Look up the rows of a batch; see host_tables_lookup. Threads split the positions or, with lists, the rows of the
// batch.
using Lookup = void(const Slots& slots, const InitialValues& initial, const HostTablesBatch& batch,
                    const std::int32_t* row_slots, const HostTablesHistory* history, float* deep, float* wide,
                    float* wide_rows, double* squared_norms, float* computed, const float** rows, int num_threads);

// Return whether all gradients of an array are finite, and small enough that the squares of their sums are finite
// too.
using AllFinite = bool(const float* values, std::int64_t count, int num_threads);

// Take one optimizer step of the batch's wide rows; see host_tables_update_wide. app/tables/optimizers.py defines the
// steps. Threads split the distinct ids.
using UpdateWide = void(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                        const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                        int num_threads);

// Take one optimizer step of the batch's deep rows; see host_tables_update_deep. app/tables/optimizers.py defines the
// steps. Threads split the distinct ids so that each gets about equally many positions. The columns of an id that is
// too frequent for one thread are split among the threads.
using UpdateDeep = void(const Slots& slots, HostTablesOptimizer optimizer, const HostTablesBatch& batch,
                        const std::int32_t* row_slots, const float* gradient, float scale, const HostTablesStep& step,
                        const HostTablesHistory* history, float* caught_up, bool is_caught_up,
                        std::uint64_t rounding_key, int num_threads);

// Copy distinct rows to their positions, and sum wide rows by batch row; see host_tables_expand. Threads split the rows
// of the batch.
using Expand = void(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep_rows,
                    const float* wide_rows, float* deep, float* wide, int num_threads);

// Sum the gradients of each distinct id's positions; see host_tables_sum_by_id. Threads split the distinct ids.
using SumById = void(const HostTablesBatch& batch, std::int64_t embedding_dim, const float* deep, const float* wide,
                     float* deep_sums, float* wide_sums, int num_threads);

// Bring the running means of rows up to the last step, in place or as copies; see host_tables_advance_means and
// host_tables_read_means. Threads split the rows.
using AdvanceMeans = void(const Slots& slots, const std::int64_t* row_ids, const std::int32_t* row_slots,
                          std::int64_t count, const HostTablesHistory* history, const HostTablesMeans& means,
                          std::uint64_t rounding_key, int num_threads);
using ReadMeans = void(const Slots& slots, const InitialValues& initial, const std::int64_t* row_ids,
                       const std::int32_t* row_slots, std::int64_t count, const HostTablesHistory* history,
                       const HostTablesMeans& means, float* scratch, float* deep, float* wide, int num_threads);

// Let rows in plain arrays take the steps that they missed; see host_tables_catch_up. Threads split the rows.
using CatchUpArrays = void(const HostTablesRowArrays& arrays, const HostTablesHistory& history,
                           const HostTablesMeans* means, int num_threads);

struct Kernels {
  const char* isa;
  Initialize* initialize;
  WriteRows* write_rows;
  Lookup* lookup;
  AllFinite* all_finite;
  UpdateWide* update_wide;
  UpdateDeep* update_deep;
  Expand* expand;
  SumById* sum_by_id;
  AdvanceMeans* advance_means;
  ReadMeans* read_means;
  CatchUpArrays* catch_up_arrays;
};

// Return the kernels of the widest instruction set that this build has and this machine runs. The environment
// variable HOST_TABLES_ISA names another set; return null if that set is not available.
const Kernels* choose_kernels();

// The kernels of one instruction set. ISA is its name.
namespace ISA {

Initialize initialize;
WriteRows write_rows;
Lookup lookup;
AllFinite all_finite;
UpdateWide update_wide;
UpdateDeep update_deep;
Expand expand;
SumById sum_by_id;
AdvanceMeans advance_means;
ReadMeans read_means;
CatchUpArrays catch_up_arrays;

}  // namespace ISA
}  // namespace host_tables

#endif  // KERNELS_H_
