// Slots for the touched rows, filled in order of first touch (those of removed rows again first), in slabs of one number
// of slots. It goes by the vocabulary, up to a largest slab: a process has some 65,000 mappings at most.
//
// A slab holds, one after the other, the deep part of its slots (a row and its optimizer's arrays, such as two
// moments: 3 D values together, so that an update touches one place) and their narrow part (the wide row, its
// optimizer's values, and what the deep row has but one of). The narrow part lies apart so that deep rows of 16 n
// floats start on cache lines.

#ifndef ROW_SLABS_H_
#define ROW_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/huge_memory.h"
#include "storage/slots.h"

namespace host_tables {

class RowSlabs {
 public:
  RowSlabs(std::int64_t num_rows, const RowLayout& layout);

  Slots view() const;
  // Bytes that reserve(num_slots) would ask the system for.
  std::size_t growth_bytes(std::int64_t num_slots) const;
  // Bytes of the slabs that hold nothing yet and are not committed.
  std::size_t uncommitted_bytes() const;
  // Slabs for `num_slots` slots in all; false where there is no memory: what was there stays as it was.
  bool reserve(std::int64_t num_slots);
  // Slabs as large as for `num_rows` from the beginning, with the first `num_slots` slots. The ones before stay as they are
  // until drop_replaced(). False, and nothing changed, where there is no memory. May throw std::bad_alloc.
  bool grow(std::int64_t num_rows, std::int64_t num_slots);
  void drop_replaced() { replaced_.clear(); }
  // Keeps view() valid while reserve() grows to `num_slots` slots in all. May throw std::bad_alloc.
  void reserve_list(std::int64_t num_slots) { slabs_.reserve(static_cast<std::size_t>(slabs_for(num_slots))); }

 private:
  std::int64_t slabs_for(std::int64_t num_slots) const;

  RowLayout layout_;
  int slab_bits_;  // a slab has 2^slab_bits_ slots
  std::vector<HugeMemory> memory_, replaced_;
  std::vector<char*> slabs_;
};

}  // namespace host_tables

#endif  // ROW_SLABS_H_
