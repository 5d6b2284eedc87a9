// Rows as they were at one moment, read during later updates: copy on write, slot by slot.
//
// Opening takes no copy. Before an update writes to a slot of the snapshot it preserves the slot's state here; a
// reader takes that, or where there is none the live state.
//
// Threads: `read` may run beside `preserve` and beside updates of slots that were preserved before. All else is for one
// thread at a time, with no `read` running.

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
  Snapshot(std::int64_t num_rows, const RowLayout& layout) : preserved_(num_rows, layout) {}

  // Of the rows in `slots` [count]; `num_touched` slots are in use. False where there is no memory.
  bool open(const Slots& live, std::int64_t num_touched, const std::int32_t* slots, std::int64_t count);
  // The memory stays, for the next one: fresh pages cost more than the copies.
  void close();
  bool is_open() const { return is_open_; }

  // Bytes that preserving `count` more slots may ask the system for.
  std::size_t growth_bytes(std::int64_t count) const { return preserved_.growth_bytes(num_preserved_ + count); }
  std::size_t uncommitted_bytes() const { return places_.uncommitted_bytes() + preserved_.uncommitted_bytes(); }
  // To be called before the states of `slots` [count] (distinct) change; false where there is no memory.
  bool preserve(const std::int32_t* slots, std::int64_t count, int num_threads);
  // State array number `array` of the rows in `slots` [count], which are of the snapshot.
  void read(HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count, void* values,
            int num_threads) const;

 private:
  static constexpr std::int32_t kLive = 0, kNotIncluded = -1;  // of `places_`; else the place in `preserved_`, + 1

  std::int32_t* places() const { return static_cast<std::int32_t*>(places_.data()); }
  bool has_preserved() const { return __atomic_load_n(&num_preserved_, __ATOMIC_ACQUIRE) > 0; }

  bool is_open_ = false;
  std::int64_t num_places_ = 0;         // slots in use when it was opened
  std::int64_t num_preserved_ = 0;
  std::vector<char*> live_slabs_;       // as they were: the live list may move as it grows
  Slots live_ = {}, preserved_view_ = {};
  std::size_t places_bytes_ = 0;
  HugeMemory places_;                   // int32 by slot
  RowSlabs preserved_;
  std::vector<std::int32_t> fresh_;     // slots to preserve in this call
};

}  // namespace host_tables

#endif  // SNAPSHOT_H_
