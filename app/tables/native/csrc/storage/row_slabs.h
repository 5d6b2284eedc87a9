// Store the slots of touched rows in slabs, large blocks of memory with the same number of slots each.
//
// Slots are filled in the order in which rows are first touched, or by ids as slot_groups.h describes; slots of removed
// rows are used again first. The size of a slab grows with the vocabulary up to a limit, because a process may have
// only some 65,000 memory mappings.
//
// A slab holds first the deep parts of all its slots, then their narrow parts. The deep part of a slot is the row
// and its optimizer's arrays (3 D values with two moments) side by side, so that an update touches one place. The
// narrow part is the wide row, its optimizer's values, and the deep table's values that exist once per row. It is
// stored apart so that deep rows of 16 n floats start on cache lines.

#ifndef ROW_SLABS_H_
#define ROW_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/slab_memory.h"
#include "storage/slots.h"

namespace host_tables {

class RowSlabs {
 public:
  // The slabs lie in `file`, or in memory if it is null.
  RowSlabs(std::int64_t num_rows, const RowLayout& layout, ScratchFile* file);

  Slots view() const;
  // Return the bytes of memory that reserve(num_slots) would take from the system.
  std::size_t growth_bytes(std::int64_t num_slots) const;
  // Return the bytes that are written once the first `num_slots` slots are filled.
  std::size_t written_bytes(std::int64_t num_slots) const;
  // Return the bytes of the slabs that are reserved but not written yet.
  std::size_t uncommitted_bytes() const;
  // Ensure that there are slabs for `num_slots` slots in total. Return false, without changing existing slabs, if
  // there is no memory or no room in the file.
  bool reserve(std::int64_t num_slots);
  // Move the first `num_slots` slots to slabs of the size that a vocabulary of `num_rows` needs. The old slabs stay
  // until drop_replaced(). Return false, without changes, if there is no memory. May throw std::bad_alloc.
  bool grow(std::int64_t num_rows, std::int64_t num_slots);
  // Append the pages of the file that hold `slot` to `runs`. The slabs must lie in a file.
  void append_pages(std::int32_t slot, std::vector<PageRun>* runs) const;
  void drop_replaced() { replaced_.clear(); }
  // Keep view() valid while reserve() grows up to `num_slots` slots in total. May throw std::bad_alloc.
  void reserve_list(std::int64_t num_slots) { slabs_.reserve(static_cast<std::size_t>(slabs_for(num_slots))); }

 private:
  std::int64_t slabs_for(std::int64_t num_slots) const;

  RowLayout layout_;
  ScratchFile* file_;
  int slab_bits_;  // A slab has 2^slab_bits_ slots.
  std::vector<SlabMemory> memory_, replaced_;
  std::vector<char*> slabs_;
};

}  // namespace host_tables

#endif  // ROW_SLABS_H_
