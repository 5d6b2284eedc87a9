// The hash that decides which of a field's out-of-vocabulary ids a value has.

#ifndef VALUE_BUCKET_H_
#define VALUE_BUCKET_H_

#include <cstdint>

// The finalizer of MurmurHash3 (A. Appleby), scaled to 0 ... num_buckets - 1 by a multiplication; reference.bucket.
inline std::uint32_t value_bucket(std::uint32_t value, std::int64_t num_buckets) {
  value = (value ^ value >> 16) * 0x85EBCA6B;
  value = (value ^ value >> 13) * 0xC2B2AE35;
  value ^= value >> 16;
  return static_cast<std::uint32_t>(value * static_cast<std::uint64_t>(num_buckets) >> 32);
}

#endif  // VALUE_BUCKET_H_
