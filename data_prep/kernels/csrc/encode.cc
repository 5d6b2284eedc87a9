// Looks up the ids of values. The upper bits of a value select a bucket of a few sorted words, in which the value is
// searched. Criteo's values are hashes, so buckets have similar sizes. Other values only make the search in a bucket
// longer.

#include <algorithm>
#include <cstdint>

#include "log_kernels.h"
#include "value_bucket.h"

namespace {

// Number of rows whose ids are looked up together, field by field. The part of the array `ids` for so many rows fits in
// the first-level cache.
constexpr std::int64_t kBlockRows = 128;

// A bucket of at most this many words is searched by counting smaller words, which needs no unpredictable branches.
constexpr std::int64_t kCountedWords = 8;

// The range of words (value and id) in which a value is searched: all words whose values have the same upper bits.
struct Bucket {
  const std::uint64_t* first;
  const std::uint64_t* end;
};

// Finds the buckets of several values. Each step prefetches the memory that the next step needs, for all values. The
// tables are larger than the caches, and without prefetching most of the time was spent waiting for cache lines.
void find_buckets(const LogKernelsVocabulary& field, const std::uint32_t* values, std::int64_t count, Bucket* buckets) {
  for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(field.starts + (std::uint64_t{values[i]} >> field.shift));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t* const start = field.starts + (std::uint64_t{values[i]} >> field.shift);
    buckets[i] = {field.words + start[0], field.words + start[1]};
    __builtin_prefetch(buckets[i].first);
  }
}

std::int64_t find(const LogKernelsVocabulary& field, const Bucket& bucket, std::uint32_t value) {
  const std::uint64_t wanted = std::uint64_t{value} << 32;
  const std::uint64_t* word = bucket.first;
  if (bucket.end - word > kCountedWords) {
    word = std::lower_bound(word, bucket.end, wanted);
  } else {
    for (const std::uint64_t* other = word; other != bucket.end; ++other) word += *other < wanted;
  }
  if (word != bucket.end && (*word ^ wanted) >> 32 == 0) return field.base_id + static_cast<std::uint32_t>(*word);
  return field.first_oov_id + value_bucket(value, field.num_oov_ids);
}

template <typename Id>
void encode(const LogKernelsVocabulary* fields, std::int64_t num_fields, const std::uint32_t* values,
            const std::uint8_t* present, std::int64_t num_rows, Id* ids) {
  Bucket buckets[kBlockRows];
  for (std::int64_t first = 0; first < num_rows; first += kBlockRows) {
    const std::int64_t end = std::min(first + kBlockRows, num_rows);
    for (std::int64_t field = 0; field < num_fields; ++field) {
      const LogKernelsVocabulary& vocabulary = fields[field];
      find_buckets(vocabulary, values + field * num_rows + first, end - first, buckets);
      for (std::int64_t row = first; row < end; ++row) {
        const std::int64_t cell = field * num_rows + row;
        const std::int64_t id = present[cell] ? find(vocabulary, buckets[row - first], values[cell]) : vocabulary.missing_id;
        ids[row * num_fields + field] = static_cast<Id>(id);
      }
    }
  }
}

}  // namespace

void log_kernels_encode(const LogKernelsVocabulary* fields, int64_t num_fields, const uint32_t* values,
                        const uint8_t* present, int64_t num_rows, int32_t id_bytes, void* ids) {
  if (id_bytes == 4) {
    encode(fields, num_fields, values, present, num_rows, static_cast<std::int32_t*>(ids));
  } else {
    encode(fields, num_fields, values, present, num_rows, static_cast<std::int64_t*>(ids));
  }
}
