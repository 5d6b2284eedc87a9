// The kernels of one instruction set, and the choice among the sets at run time.

#ifndef KERNELS_H_
#define KERNELS_H_

#include <cstdint>

#include "host_tables.h"
#include "slots.h"

namespace host_tables {

// What an untouched row holds; see app/tables/initial.py.
struct InitialValues {
  std::uint64_t table_key;
  float scale;
  float wide_accumulator, deep_accumulator;
};

// The documentation of each is in its own header.
struct Kernels {
  const char* isa;
  void (*initialize)(const Slots&, const InitialValues&, const std::int64_t* row_ids, const std::int32_t* row_slots,
                     std::int64_t count, const WrittenArrays* written, int num_threads);
  bool (*write_rows)(const Slots&, HostTablesTable, int array, bool is_float, const std::int32_t* slots,
                     std::int64_t count, const float* values, WrittenArrays* written, int num_threads);
  void (*lookup)(const Slots&, const InitialValues&, const HostTablesBatch&, const std::int32_t* slots,
                 const HostTablesHistory*, float* deep, float* wide, float* wide_rows, double* squared_norms,
                 int num_threads);
  bool (*all_finite)(const float* values, std::int64_t count, int num_threads);
  void (*update_wide)(const Slots&, HostTablesOptimizer, const HostTablesBatch&, const std::int32_t* slots,
                      const float* gradient, float scale, const HostTablesStep&, int num_threads);
  void (*update_deep)(const Slots&, HostTablesOptimizer, const HostTablesBatch&, const std::int32_t* slots,
                      const float* gradient, float scale, const HostTablesStep&, const HostTablesHistory*,
                      int num_threads);
  void (*expand)(const HostTablesBatch&, std::int64_t embedding_dim, const float* deep_rows, const float* wide_rows,
                 float* deep, float* wide, int num_threads);
  void (*sum_by_id)(const HostTablesBatch&, std::int64_t embedding_dim, const float* deep, const float* wide,
                    float* deep_sums, float* wide_sums, int num_threads);
};

// The widest set that this build has and this machine runs, or the one that the environment variable
// HOST_TABLES_ISA names; null if it names another.
const Kernels* choose_kernels();

}  // namespace host_tables

#endif  // KERNELS_H_
