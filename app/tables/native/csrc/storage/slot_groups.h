// Choose the slots of new rows in a scratch file: rows with neighbouring ids get neighbouring slots.
//
// A group has some 64 KiB of slots, for as many neighbouring ids. It takes the next slots when the first of its rows is
// touched. Reading the rows by ascending id, for a checkpoint, then reads the file in long runs instead of one page per
// row. While rows are in memory there are no groups: slots are given in the order in which rows are first touched.

#ifndef SLOT_GROUPS_H_
#define SLOT_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "storage/slots.h"

namespace host_tables {

class SlotGroups {
 public:
  // The ids of the tables are multiples of `id_stride` plus a constant. Without `is_used`, there are no groups.
  SlotGroups(std::int64_t id_stride, const RowLayout& layout, bool is_used) : id_stride_(id_stride), is_used_(is_used) {
    const std::int64_t row_bytes = layout.deep_bytes() + layout.narrow_bytes();
    while (row_bytes << bits_ < kGroupBytes && bits_ < kMostBits) ++bits_;
  }

  bool is_used() const { return is_used_; }
  std::int64_t size() const { return std::int64_t{1} << bits_; }
  // Return the slots that the new groups among `rows` will take. Make room to store the groups. May throw
  // std::bad_alloc.
  std::int64_t slots_needed(const std::vector<std::int64_t>& rows) {
    std::vector<std::int64_t> fresh;
    for (const std::int64_t row : rows) {
      const std::int64_t group = group_of(row);
      if (group >= static_cast<std::int64_t>(first_slots_.size())) first_slots_.resize(static_cast<std::size_t>(group) + 1, kNone);
      if (first_slots_[static_cast<std::size_t>(group)] == kNone) fresh.push_back(group);
    }
    std::sort(fresh.begin(), fresh.end());
    return (std::unique(fresh.begin(), fresh.end()) - fresh.begin()) * size();
  }
  // Return the slot of `row`. A group that has no slots yet takes those from *num_slots on.
  std::int32_t slot_of(std::int64_t row, std::int64_t* num_slots) {
    std::int32_t& first = first_slots_[static_cast<std::size_t>(group_of(row))];
    if (first == kNone) {
      first = static_cast<std::int32_t>(*num_slots);
      *num_slots += size();
    }
    return first + static_cast<std::int32_t>(row / id_stride_ & (size() - 1));
  }
  // Return the slot that slot_of(row) gives, or -1 if the row's group has no slots yet.
  std::int32_t known_slot(std::int64_t row) const {
    const std::int32_t first = first_slot(group_of(row));
    return first == kNone ? kNone : first + static_cast<std::int32_t>(row / id_stride_ & (size() - 1));
  }
  // Forget the group of `row`, and call visit(id, slot) for all of its ids. Do nothing if it has no slots.
  template <typename Visit>
  void dissolve(std::int64_t row, Visit visit) {
    const std::int64_t group = group_of(row);
    const std::int32_t first = first_slot(group);
    if (first == kNone) return;
    for (std::int64_t i = 0; i < size(); ++i) {
      visit(((group << bits_) + i) * id_stride_ + row % id_stride_, first + static_cast<std::int32_t>(i));
    }
    first_slots_[static_cast<std::size_t>(group)] = kNone;
  }
  // Forget all groups.
  void clear() { first_slots_ = {}; }

 private:
  static constexpr std::int64_t kGroupBytes = std::int64_t{64} << 10;
  static constexpr int kMostBits = 10;
  static constexpr std::int32_t kNone = -1;

  std::int64_t group_of(std::int64_t row) const { return row / id_stride_ >> bits_; }
  std::int32_t first_slot(std::int64_t group) const {
    return group < static_cast<std::int64_t>(first_slots_.size()) ? first_slots_[static_cast<std::size_t>(group)] : kNone;
  }

  std::int64_t id_stride_;
  bool is_used_;
  int bits_ = 0;
  std::vector<std::int32_t> first_slots_;  // for each group of ids its first slot
};

}  // namespace host_tables

#endif  // SLOT_GROUPS_H_
