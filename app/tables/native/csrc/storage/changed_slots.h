// Keep one bit per slot (place of a row in memory): whether its row was updated since the bits were last taken.

#ifndef CHANGED_SLOTS_H_
#define CHANGED_SLOTS_H_

#include <cstdint>
#include <vector>

namespace host_tables {

class ChangedSlots {
 public:
  // Mark slots. May throw std::bad_alloc before anything is marked.
  void mark(const std::int32_t* slots, std::int64_t count, std::int64_t num_touched) {
    words_.resize(static_cast<std::size_t>((num_touched + 63) / 64));
    for (std::int64_t i = 0; i < count; ++i) {
      words_[static_cast<std::size_t>(slots[i] >> 6)] |= std::uint64_t{1} << (slots[i] & 63);
    }
  }

  // Write 1 (marked) or 0 for each of the `num_touched` slots, then clear all marks.
  void take(std::uint8_t* changed, std::int64_t num_touched) {
    const std::int64_t known = static_cast<std::int64_t>(words_.size()) * 64;
    for (std::int64_t slot = 0; slot < num_touched; ++slot) {
      changed[slot] = slot < known && (words_[static_cast<std::size_t>(slot >> 6)] >> (slot & 63) & 1);
    }
    words_.clear();
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace host_tables

#endif  // CHANGED_SLOTS_H_
