#include "storage/snapshot.h"

#include <algorithm>
#include <iterator>

namespace host_tables {
namespace {

// Number of bytes to prefetch ahead, about as many as the memory system can fetch at once, and the largest number of
// slots to prefetch ahead.
constexpr std::int64_t kBytesAhead = 7680, kMostSlotsAhead = 128;
constexpr std::int64_t kBytesAtOnce = 65536;  // Number of bytes that are copied between two checks for updates.

// Copy the values of `slots` [count], and prefetch the values of later slots, up to slots[num_known - 1].
void copy_slots(const SlotArray& array, const std::int32_t* slots, std::int64_t count, std::int64_t num_known, char* out) {
  const std::int64_t ahead = std::clamp<std::int64_t>(kBytesAhead / array.bytes, 1, kMostSlotsAhead);
  const auto copy = [=](std::int64_t bytes) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (i + ahead < num_known) prefetch_values(values_of(array, slots[i + ahead]), bytes);
      copy_values(values_of(array, slots[i]), bytes, out + i * bytes);
    }
  };
  if (array.bytes == 4) {
    copy(4);  // Most arrays have 4 bytes per slot. A constant size halves their time.
  } else {
    copy(array.bytes);
  }
}

}  // namespace

bool Snapshot::open(const Slots& live, std::int64_t num_touched, const std::int32_t* slots, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(num_touched) * sizeof(std::int32_t);
  if (bytes > places_bytes_) {
    const std::size_t with_room = bytes + bytes / 4;
    places_ = HugeMemory(with_room);
    places_bytes_ = places_.data() == nullptr ? 0 : with_room;
  }
  if (num_touched > 0 && places_.data() == nullptr) return false;
  const bool are_all = count == num_touched;
  std::fill_n(places(), num_touched, are_all ? kLive : kNotIncluded);
  for (std::int64_t i = 0; i < count && !are_all; ++i) places()[slots[i]] = kLive;
  const std::int64_t num_slabs = (num_touched + (std::int64_t{1} << live.slab_bits) - 1) >> live.slab_bits;
  live_slabs_.assign(live.slabs, live.slabs + num_slabs);
  live_ = {live_slabs_.data(), live.slab_bits, live.layout};
  preserved_.grow(std::int64_t{1} << live.slab_bits, 0);
  preserved_.drop_replaced();
  preserved_.reserve_list(count);
  preserved_view_ = preserved_.view();
  num_places_ = num_touched;
  num_preserved_ = 0;
  is_open_ = true;
  return true;
}

void Snapshot::close() {
  is_open_ = false;
  num_places_ = 0;
}

bool Snapshot::preserve(const std::int32_t* slots, std::int64_t count, int num_threads) {
  fresh_.clear();
  std::copy_if(slots, slots + count, std::back_inserter(fresh_),
               [this](std::int32_t slot) { return slot < num_places_ && places()[slot] == kLive; });
  const std::int64_t num_fresh = static_cast<std::int64_t>(fresh_.size());
  if (!preserved_.reserve(num_preserved_ + num_fresh)) return false;
  const std::int32_t first = static_cast<std::int32_t>(num_preserved_);
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t i = 0; i < num_fresh; ++i) {
    const std::int32_t slot = fresh_[static_cast<std::size_t>(i)], place = first + static_cast<std::int32_t>(i);
    copy_slot(live_, slot, preserved_view_, place);
    __atomic_store_n(places() + slot, place + 1, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&num_preserved_, num_preserved_ + num_fresh, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_RELEASE);  // The update's writes must come after the stores above.
  return true;
}

void Snapshot::read(HostTablesTable table, int array, const std::int32_t* slots, std::int64_t count, void* values,
                    int num_threads) const {
  const SlotArray live = slot_array(live_, table, array), preserved = slot_array(preserved_view_, table, array);
  const std::int64_t slots_at_once = std::max<std::int64_t>(1, kBytesAtOnce / live.bytes);
  char* const out = static_cast<char*>(values);
  // The schedule is dynamic because a thread that was asleep starts late.
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (std::int64_t start = 0; start < count; start += slots_at_once) {
    const std::int64_t end = std::min(start + slots_at_once, count);
    copy_slots(live, slots + start, end - start, count - start, out + start * live.bytes);
    // An update may have begun during the copy. It preserved each slot before writing to it, so preserved slots are
    // copied again from there.
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!has_preserved()) continue;
    for (std::int64_t i = start; i < end; ++i) {
      if (i + kMostSlotsAhead < end) __builtin_prefetch(places() + slots[i + kMostSlotsAhead]);
      const std::int32_t place = __atomic_load_n(places() + slots[i], __ATOMIC_ACQUIRE);
      if (place > kLive) copy_values(values_of(preserved, place - 1), live.bytes, out + i * live.bytes);
    }
  }
}

}  // namespace host_tables
