#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "distinct_layer.h"

namespace {

// Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4)
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;

// Give each distinct id of one field a number, from `next` on: rows[number] becomes the id, and `index` the number of
// each id. `places` is a hash table (open addressing) of numbers, with -1 for free entries. Return the next free
// number.
std::int32_t number_field(const std::int64_t* ids, std::int64_t batch, std::int64_t num_fields, std::int32_t next,
                          std::vector<std::int32_t>& places, int bits, std::int64_t* rows, std::int32_t* index) {
  std::fill(places.begin(), places.end(), -1);
  const std::uint64_t mask = places.size() - 1;
  for (std::int64_t i = 0; i < batch * num_fields; i += num_fields) {
    std::uint64_t place = static_cast<std::uint64_t>(ids[i]) * kGolden >> (64 - bits);
    while (places[place] >= 0 && rows[places[place]] != ids[i]) place = (place + 1) & mask;
    if (places[place] < 0) {
      rows[next] = ids[i];
      places[place] = next++;
    }
    index[i] = places[place];
  }
  return next;
}

}  // namespace

extern "C" int distinct_rows(const int64_t* ids, int64_t batch, int64_t num_fields, int64_t* rows, int32_t* index,
                             int32_t* starts) {
  constexpr int kOutOfMemory = 1;  // dnnl_out_of_memory
  try {
    int bits = 4;
    while (std::int64_t{1} << bits < 2 * batch) ++bits;
    std::vector<std::int32_t> places(std::size_t{1} << bits);
    starts[0] = 0;
    for (std::int64_t f = 0; f < num_fields; ++f) {
      starts[f + 1] = number_field(ids + f, batch, num_fields, starts[f], places, bits, rows, index + f);
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}
