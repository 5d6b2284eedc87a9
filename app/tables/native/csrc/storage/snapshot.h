// Keep rows readable as they were at one moment while updates go on, by copying slots before they change.
//
// Opening a snapshot copies nothing. Before an update writes to a slot of the snapshot, it preserves the slot's
// state here. A reader takes the preserved state if there is one, else the live state.
//
// Threads: `read` may run beside `preserve`, and beside updates of slots that were preserved before. All other
// functions need a single thread and no running `read`.

#ifndef SNAPSHOT_H_
#define SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host_tables.h"
#include "storage/huge_memory.h"
#include "storage/row_slabs.h"
#include "storage/slots.h"

namespace host_tables {

class Snapshot {
 public:
  // Preserved states lie in `file`, or in memory if it is null.
  Snapshot(std::int64_t num_rows, const RowLayout& layout, ScratchFile* file) : preserved_(num_rows, layout, file) {}

  // Open a snapshot of the rows in `slots` [count]. `num_touched` slots are in use. Return false if there is no
  // memory.
  bool open(const Slots& live, std::int64_t num_touched, const std::int32_t* slots, std::int64_t count);
  // Close the snapshot. Its memory is kept for the next one, because fresh pages cost more than the copies.
  void close();
  bool is_open() const { return is_open_; }

  // Return the bytes that preserving `count` more slots may take from the system.
  std::size_t growth_bytes(std::int64_t count) const { return preserved_.growth_bytes(num_preserved_ + count); }
  std::size_t uncommitted_bytes() const { return places_.uncommitted_bytes() + preserved_.uncommitted_bytes(); }
  // Preserve the states of the distinct `slots` [count]. Call it before they change. Return false if there is no
  // memory.
  bool preserve(const std::int32_t* slots, std::int64_t count, int num_threads);
  // Copy one state array of the rows in `slots` [count] to `values`. The rows must belong to the snapshot.
  void read(HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count, void* values,
            int num_threads) const;

 private:
  // Values of `places_` for a slot that has not been preserved, and for one outside the snapshot. Any other value is
  // 1 + the slot's number in `preserved_`.
  static constexpr std::int32_t kLive = 0, kNotIncluded = -1;

  std::int32_t* places() const { return static_cast<std::int32_t*>(places_.data()); }
  bool has_preserved() const { return __atomic_load_n(&num_preserved_, __ATOMIC_ACQUIRE) > 0; }

  bool is_open_ = false;
  std::int64_t num_places_ = 0;  // slots in use when the snapshot was opened
  std::int64_t num_preserved_ = 0;
  std::vector<char*> live_slabs_;  // copy of the list of slabs, because the live list may move when it grows
  Slots live_ = {}, preserved_view_ = {};
  std::size_t places_bytes_ = 0;
  HugeMemory places_;  // int32 for each slot
  RowSlabs preserved_;
  std::vector<std::int32_t> fresh_;  // slots to preserve in the present call
};

}  // namespace host_tables

#endif  // SNAPSHOT_H_
