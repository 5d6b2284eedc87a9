#include "storage/row_map.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace host_tables {
namespace {

constexpr int kSmallestBits = 10;

// Return the largest number of entries of a hash. Linear probing slows down steeply above a load of 0.7.
std::int64_t most_entries(int capacity_bits) { return (std::int64_t{1} << capacity_bits) * 7 / 10; }

}  // namespace

RowMap::Layout RowMap::layout_for(std::int64_t num_rows) const {
  Layout layout{Form::kHash, std::max(layout_.capacity_bits, kSmallestBits)};
  while (most_entries(layout.capacity_bits) < num_rows) ++layout.capacity_bits;
  const Layout flat{Form::kFlat, 0};
  return layout_bytes(layout) < layout_bytes(flat) ? layout : flat;
}

std::size_t RowMap::layout_bytes(const Layout& layout) const {
  switch (layout.form) {
    case Form::kHash:
      return sizeof(Entry) << layout.capacity_bits;
    case Form::kFlat:
      return sizeof(std::int32_t) * static_cast<std::size_t>(num_rows_);
    default:
      return 0;
  }
}

std::size_t RowMap::growth_bytes(std::int64_t num_new) const {
  const Layout wanted = layout_for(size_ + num_new);
  if (layout_.form == Form::kFlat || layout_bytes(wanted) == layout_bytes(layout_)) return 0;
  return HugeMemory::mapped_bytes(layout_bytes(wanted));
}

bool RowMap::reserve(std::int64_t num_new) {
  if (growth_bytes(num_new) == 0) return true;
  RowMap grown(num_rows_);
  grown.layout_ = layout_for(size_ + num_new);
  grown.memory_ = HugeMemory(layout_bytes(grown.layout_));
  if (grown.memory_.data() == nullptr) return false;
  for_each([&grown](std::int64_t row, std::int32_t slot) { grown.insert(row, slot); });
  std::swap(layout_, grown.layout_);
  std::swap(memory_, grown.memory_);
  return true;
}

bool RowMap::grow(std::int64_t num_rows) {
  if (layout_.form == Form::kFlat) {
    const std::size_t bytes = layout_bytes(layout_);
    HugeMemory grown(sizeof(std::int32_t) * static_cast<std::size_t>(num_rows));
    if (grown.data() == nullptr) return false;
    std::memcpy(grown.data(), memory_.data(), bytes);
    std::swap(memory_, grown);
  }
  num_rows_ = num_rows;
  return true;
}

void RowMap::insert(std::int64_t row, std::int32_t slot) {
  if (layout_.form == Form::kFlat) {
    flat()[row] = slot + 1;
  } else {
    const std::uint64_t bits = static_cast<std::uint64_t>(row);
    *entry_of(row) = {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32), slot + 1};
  }
  ++size_;
}

void RowMap::erase(std::int64_t row) {
  --size_;
  if (layout_.form == Form::kFlat) {
    flat()[row] = 0;
    return;
  }
  // Fill the hole that the removed entry leaves with a later entry, unless the home of that entry lies after the hole,
  // and so on, so that no search ends too early (Knuth, The Art of Computer Programming, 6.4, Algorithm R).
  const std::uint64_t mask = (std::uint64_t{1} << layout_.capacity_bits) - 1;
  std::uint64_t hole = static_cast<std::uint64_t>(entry_of(row) - hash());
  for (std::uint64_t place = (hole + 1) & mask; hash()[place].slot_plus_one != 0; place = (place + 1) & mask) {
    const std::uint64_t home = home_of(hash()[place].row(), layout_.capacity_bits);
    if (((place - home) & mask) < ((place - hole) & mask)) continue;
    hash()[hole] = hash()[place];
    hole = place;
  }
  hash()[hole] = {};
}

template <typename Visit>
void RowMap::for_each(Visit visit) const {
  if (layout_.form == Form::kFlat) {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      if (flat()[row] != 0) visit(row, flat()[row] - 1);
    }
  } else if (layout_.form == Form::kHash) {
    for (std::int64_t place = 0; place < std::int64_t{1} << layout_.capacity_bits; ++place) {
      const Entry& entry = hash()[place];
      if (entry.slot_plus_one != 0) visit(entry.row(), entry.slot_plus_one - 1);
    }
  }
}

void RowMap::entries(std::int64_t* rows, std::int32_t* slots) const {
  if (layout_.form == Form::kFlat) {  // a flat map is in order already
    for_each([&rows, &slots](std::int64_t row, std::int32_t slot) {
      *rows++ = row;
      *slots++ = slot;
    });
    return;
  }
  std::vector<std::pair<std::int64_t, std::int32_t>> pairs;
  pairs.reserve(static_cast<std::size_t>(size_));
  for_each([&pairs](std::int64_t row, std::int32_t slot) { pairs.emplace_back(row, slot); });
  std::sort(pairs.begin(), pairs.end());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    rows[i] = pairs[i].first;
    slots[i] = pairs[i].second;
  }
}

}  // namespace host_tables
