#include "storage/unique_ids.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace host_tables {
namespace {

// Largest vocabulary for direct addressing: 4 MiB of entries. Above it, a hash of the batch's size takes less memory
// and, from 4 M rows on, less time. Measured with 416,000 power-law ids, direct addressing and hash took 2.6 and 3.6
// ms at 200,000 rows, 3.6 and 4.5 ms at 1 M, 5.9 and 5.1 ms at 4 M.
constexpr std::int64_t kLargestDirect = std::int64_t{1} << 20;
constexpr std::int64_t kIdsAhead = 16;
// Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4)
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

std::int32_t* places(UniqueScratch& scratch, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
  if (bytes > scratch.bytes) {
    scratch.memory = HugeMemory(bytes);
    scratch.bytes = scratch.memory.data() == nullptr ? 0 : bytes;
  }
  return static_cast<std::int32_t*>(scratch.memory.data());
}

// Finds the entry of an id in an array with one entry for each id of the vocabulary. The entry has the id's index in
// `values` [num_unique], the distinct ids so far.
struct Direct {
  std::int32_t* place_of_id;

  void prefetch(std::int64_t id) const { __builtin_prefetch(place_of_id + id); }

  std::int32_t* find(std::int64_t id, const std::int64_t* values, std::int64_t num_unique, bool* known) const {
    std::int32_t* const place = place_of_id + id;
    *known = *place < num_unique && values[*place] == id;
    return place;
  }
};

// Finds the entry of an id in a hash table with open addressing. The entry has the id's index in `values`, the distinct
// ids so far, or is -1 if it is free.
struct Hash {
  std::int32_t* entries;
  int bits;

  std::uint64_t home_of(std::int64_t id) const { return static_cast<std::uint64_t>(id) * kGolden >> (64 - bits); }
  void prefetch(std::int64_t id) const { __builtin_prefetch(entries + home_of(id)); }

  std::int32_t* find(std::int64_t id, const std::int64_t* values, std::int64_t, bool* known) const {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    std::uint64_t home = home_of(id);
    while (entries[home] >= 0 && values[entries[home]] != id) home = (home + 1) & mask;
    *known = entries[home] >= 0;
    return entries + home;
  }
};

// Number the ids: fill values and inverse, and count the positions of id u in offsets[u + 1].
template <typename Id, typename Places>
UniqueStatus number_ids(const Id* ids, std::int64_t count, std::int64_t vocabulary_size, const Places& places_of,
                        std::int64_t* values, std::int32_t* inverse, std::int32_t* offsets,
                        std::int64_t* num_unique) {
  std::int32_t known_ids = 0;
  offsets[0] = 0;
  for (std::int64_t position = 0; position < count; ++position) {
    const std::int64_t id = ids[position], ahead = ids[std::min(position + kIdsAhead, count - 1)];
    if (id < 0 || id >= vocabulary_size) return UniqueStatus::kBadId;
    if (ahead >= 0 && ahead < vocabulary_size) places_of.prefetch(ahead);
    bool known;
    std::int32_t* const place = places_of.find(id, values, known_ids, &known);
    if (!known) {
      *place = known_ids;
      values[known_ids] = id;
      offsets[known_ids + 1] = 0;
      ++known_ids;
    }
    inverse[position] = *place;
    ++offsets[*place + 1];
  }
  *num_unique = known_ids;
  return UniqueStatus::kOk;
}

// Group positions by id with a counting sort. `offsets` changes from counts to ends.
void group_positions(std::int64_t count, std::int64_t num_unique, const std::int32_t* inverse, std::int32_t* offsets,
                     std::int32_t* positions) {
  // offsets[u + 1] runs from the start of group u to its end, which is the start of group u + 1.
  std::int32_t start = 0;
  for (std::int64_t u = 0; u < num_unique; ++u) start += std::exchange(offsets[u + 1], start);
  for (std::int64_t position = 0; position < count; ++position) {
    positions[offsets[inverse[position] + 1]++] = static_cast<std::int32_t>(position);
  }
}

int hash_bits(std::int64_t count) {
  int bits = 10;
  while (std::int64_t{1} << bits < 2 * count) ++bits;
  return bits;
}

}  // namespace

std::unique_ptr<UniqueScratch> UniqueScratchPool::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return std::make_unique<UniqueScratch>();
  std::unique_ptr<UniqueScratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void UniqueScratchPool::give_back(std::unique_ptr<UniqueScratch> scratch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(scratch));
}

template <typename Id>
UniqueStatus find_lists(const Id* ids, std::int64_t num_rows, std::int64_t num_fields, const std::int32_t* lengths,
                        const std::int32_t* means, std::int64_t vocabulary_size, Id* values, std::int32_t* first,
                        std::int32_t* places, float* weights, std::int64_t* num_values) {
  std::int32_t count = 0;
  for (std::int64_t place = 0; place < num_rows * num_fields; ++place) {
    const std::int64_t field = place % num_fields;
    const std::int32_t start = first[place] = count;
    for (std::int32_t i = 0; i < lengths[field]; ++i, ++ids) {
      if (*ids == -1 && i > 0) continue;
      if (*ids < 0 || *ids >= vocabulary_size) return UniqueStatus::kBadId;
      places[count] = static_cast<std::int32_t>(place);
      values[count++] = *ids;
    }
    std::fill(weights + start, weights + count, means[field] ? 1.0f / static_cast<float>(count - start) : 1.0f);
  }
  first[num_rows * num_fields] = count;
  *num_values = count;
  return UniqueStatus::kOk;
}

template UniqueStatus find_lists(const std::int32_t*, std::int64_t, std::int64_t, const std::int32_t*,
                                 const std::int32_t*, std::int64_t, std::int32_t*, std::int32_t*, std::int32_t*,
                                 float*, std::int64_t*);
template UniqueStatus find_lists(const std::int64_t*, std::int64_t, std::int64_t, const std::int32_t*,
                                 const std::int32_t*, std::int64_t, std::int64_t*, std::int32_t*, std::int32_t*,
                                 float*, std::int64_t*);

template <typename Id>
UniqueStatus unique_ids(const Id* ids, std::int64_t count, std::int64_t vocabulary_size, UniqueScratch& scratch,
                        std::int64_t* values, std::int32_t* inverse, std::int32_t* offsets, std::int32_t* positions,
                        std::int64_t* num_unique) {
  const bool direct = vocabulary_size <= kLargestDirect;
  const int bits = hash_bits(count);
  const std::int64_t num_places = direct ? vocabulary_size : std::int64_t{1} << bits;
  std::int32_t* const memory = places(scratch, num_places);
  if (memory == nullptr) return UniqueStatus::kNoMemory;
  UniqueStatus status;
  if (direct) {
    status = number_ids(ids, count, vocabulary_size, Direct{memory}, values, inverse, offsets, num_unique);
  } else {
    // All bytes 0xFF make every entry -1, which means free.
    std::memset(memory, 0xFF, static_cast<std::size_t>(num_places) * sizeof(std::int32_t));
    status = number_ids(ids, count, vocabulary_size, Hash{memory, bits}, values, inverse, offsets, num_unique);
  }
  if (status == UniqueStatus::kOk) group_positions(count, *num_unique, inverse, offsets, positions);
  return status;
}

template UniqueStatus unique_ids(const std::int32_t*, std::int64_t, std::int64_t, UniqueScratch&, std::int64_t*,
                                 std::int32_t*, std::int32_t*, std::int32_t*, std::int64_t*);
template UniqueStatus unique_ids(const std::int64_t*, std::int64_t, std::int64_t, UniqueScratch&, std::int64_t*,
                                 std::int32_t*, std::int32_t*, std::int32_t*, std::int64_t*);

}  // namespace host_tables
