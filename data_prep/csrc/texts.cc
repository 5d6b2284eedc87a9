// Strings: their distinct ones counted by a hash table, and their ids found among a vocabulary's. Keys only find strings;
// equality is decided on the bytes.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "log_kernels.h"
#include "value_bucket.h"

namespace {

std::uint64_t word_at(const std::uint8_t* place, std::int64_t own_bytes) {
  std::uint64_t word;
  std::memcpy(&word, place, sizeof word);
  return own_bytes >= 8 ? word : word & ((std::uint64_t{1} << 8 * own_bytes) - 1);
}

// texts.Texts.keys; the finalizer is SplitMix64's.
std::uint64_t key_of(const std::uint8_t* text, std::int64_t length) {
  std::uint64_t key = static_cast<std::uint64_t>(length) * 0x9E3779B97F4A7C15;
  for (std::int64_t done = 0; done < length; done += 8) {
    key = (key ^ word_at(text + done, length - done)) * 0xD6E8FEB86659FD93;
    key ^= key >> 32;
  }
  key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9;
  key = (key ^ key >> 27) * 0x94D049BB133111EB;
  return key ^ key >> 31;
}

bool same(const LogKernelsTexts& some, std::int64_t i, const LogKernelsTexts& others, std::int64_t j) {
  return some.lengths[i] == others.lengths[j] &&
         std::memcmp(some.data + some.starts[i], others.data + others.starts[j],
                     static_cast<std::size_t>(some.lengths[i])) == 0;
}

}  // namespace

int64_t log_kernels_count_texts(const LogKernelsTexts* texts, uint64_t key_mask, int32_t* table, int64_t table_size,
                                uint64_t* keys, int64_t* counts, int64_t* firsts) {
  const std::uint64_t slots = static_cast<std::uint64_t>(table_size) - 1;
  std::fill(table, table + table_size, -1);
  std::int64_t num_distinct = 0;
  for (std::int64_t row = 0; row < texts->count; ++row) {
    const std::uint64_t key = key_of(texts->data + texts->starts[row], texts->lengths[row]) & key_mask;
    std::uint64_t slot = key >> 32 & slots;
    for (;; slot = (slot + 1) & slots) {
      const std::int32_t known = table[slot];
      if (known < 0) {
        table[slot] = static_cast<std::int32_t>(num_distinct);
        keys[num_distinct] = key;
        counts[num_distinct] = 1;
        firsts[num_distinct++] = row;
        break;
      }
      if (keys[known] == key && same(*texts, row, *texts, firsts[known])) {
        ++counts[known];
        break;
      }
    }
  }
  return num_distinct;
}

void log_kernels_find_texts(const LogKernelsTexts* texts, const uint8_t* present, const LogKernelsTexts* vocabulary,
                            const uint64_t* keys, const int64_t* known_ids, int64_t missing_id, int64_t first_oov_id,
                            int64_t num_oov_ids, int64_t* ids) {
  const std::uint64_t* const end = keys + vocabulary->count;
  for (std::int64_t row = 0; row < texts->count; ++row) {
    if (!present[row]) {
      ids[row] = missing_id;
      continue;
    }
    const std::uint64_t key = key_of(texts->data + texts->starts[row], texts->lengths[row]);
    ids[row] = first_oov_id + value_bucket(static_cast<std::uint32_t>(key >> 32), num_oov_ids);
    for (const std::uint64_t* found = std::lower_bound(keys, end, key); found != end && *found == key; ++found) {
      if (same(*texts, row, *vocabulary, found - keys)) ids[row] = known_ids[found - keys];
    }
  }
}
