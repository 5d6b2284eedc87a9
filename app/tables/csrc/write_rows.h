// Rows that come from a file, array by array.

#ifndef WRITE_ROWS_H_
#define WRITE_ROWS_H_

#include "kernels.h"

namespace host_tables::ISA {

// Copies `values` [count, width] into one state array of the distinct `slots` [count] and notes that in `written`,
// which has a place for each slot. Returns whether all are finite; they are looked at only where `is_float`.
bool write_rows(const Slots& view, HostTablesTable table, int array, bool is_float, const std::int32_t* slots,
                std::int64_t count, const float* values, WrittenArrays* written, int num_threads);

}  // namespace host_tables::ISA

#endif  // WRITE_ROWS_H_
