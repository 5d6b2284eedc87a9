#include "storage/row_slabs.h"

#include <unistd.h>

#include <iterator>
#include <utility>

namespace host_tables {
namespace {

// Size of the largest slab. The unused part of its last huge page is small in comparison. Pages are committed only
// when they are filled.
constexpr std::size_t kLargestSlab = std::size_t{64} << 20;

std::size_t slab_bytes(int slab_bits, const RowLayout& layout) {
  return static_cast<std::size_t>(layout.narrow_start(slab_bits) + (layout.narrow_bytes() << slab_bits));
}

}  // namespace

RowSlabs::RowSlabs(std::int64_t num_rows, const RowLayout& layout, ScratchFile* file)
    : layout_(layout), file_(file), slab_bits_(0) {
  while (std::int64_t{1} << slab_bits_ < num_rows && slab_bytes(slab_bits_ + 1, layout) <= kLargestSlab) {
    ++slab_bits_;
  }
}

Slots RowSlabs::view() const { return {slabs_.data(), slab_bits_, layout_}; }

std::int64_t RowSlabs::slabs_for(std::int64_t num_slots) const {
  return (num_slots + (std::int64_t{1} << slab_bits_) - 1) >> slab_bits_;
}

std::size_t RowSlabs::growth_bytes(std::int64_t num_slots) const {
  const std::int64_t missing = slabs_for(num_slots) - static_cast<std::int64_t>(slabs_.size());
  if (missing <= 0 || file_ != nullptr) return 0;
  return static_cast<std::size_t>(missing) * HugeMemory::mapped_bytes(slab_bytes(slab_bits_, layout_));
}

std::size_t RowSlabs::written_bytes(std::int64_t num_slots) const {
  const std::int64_t in_last = num_slots & ((std::int64_t{1} << slab_bits_) - 1);
  const auto part = [&](std::int64_t bytes) { return HugeMemory::mapped_bytes(static_cast<std::size_t>(in_last * bytes)); };
  const std::size_t whole = static_cast<std::size_t>(num_slots >> slab_bits_) * slab_bytes(slab_bits_, layout_);
  return whole + part(layout_.deep_bytes()) + part(layout_.narrow_bytes());
}

std::size_t RowSlabs::uncommitted_bytes() const {
  std::size_t bytes = 0;
  for (const SlabMemory& slab : memory_) bytes += slab.uncommitted_bytes();
  return bytes;
}

bool RowSlabs::reserve(std::int64_t num_slots) {
  while (static_cast<std::int64_t>(slabs_.size()) < slabs_for(num_slots)) {
    SlabMemory slab(slab_bytes(slab_bits_, layout_), file_);
    if (slab.data() == nullptr) return false;
    memory_.reserve(memory_.size() + 1);
    slabs_.push_back(static_cast<char*>(slab.data()));
    memory_.push_back(std::move(slab));
  }
  return true;
}

void RowSlabs::append_pages(std::int32_t slot, std::vector<PageRun>* runs) const {
  static const std::int64_t page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  const std::int64_t place = slot & ((std::int64_t{1} << slab_bits_) - 1);
  const std::int64_t slab_start = memory_[static_cast<std::size_t>(slot >> slab_bits_)].part().start;
  const auto append = [=](std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    const std::int64_t start = slab_start + offset, first = start / page, end = (start + bytes - 1) / page + 1;
    runs->push_back({first, end - first});
  };
  append(place * layout_.deep_bytes(), layout_.deep_bytes());
  append(layout_.narrow_start(slab_bits_) + place * layout_.narrow_bytes(), layout_.narrow_bytes());
}

bool RowSlabs::grow(std::int64_t num_rows, std::int64_t num_slots) {
  RowSlabs grown(num_rows, layout_, file_);
  if (grown.slab_bits_ <= slab_bits_) return true;
  if (!grown.reserve(num_slots)) return false;
  for (std::int32_t slot = 0; slot < num_slots; ++slot) copy_slot(view(), slot, grown.view(), slot);
  replaced_.reserve(replaced_.size() + memory_.size());
  grown.replaced_ = std::move(replaced_);
  std::move(memory_.begin(), memory_.end(), std::back_inserter(grown.replaced_));
  *this = std::move(grown);
  return true;
}

}  // namespace host_tables
