// Defines the hash that selects one of a field's out-of-vocabulary ids for a value.

#ifndef VALUE_BUCKET_H_
#define VALUE_BUCKET_H_

#include <cstdint>

// Returns a hash of a value from 0 to num_buckets - 1, as numpy_kernels.bucket does. It is the finalizer of MurmurHash3
// (A. Appleby), scaled by a multiplication.
inline std::uint32_t value_bucket(std::uint32_t value, std::int64_t num_buckets) {
  value = (value ^ value >> 16) * 0x85EBCA6B;
  value = (value ^ value >> 13) * 0xC2B2AE35;
  value ^= value >> 16;
  return static_cast<std::uint32_t>(value * static_cast<std::uint64_t>(num_buckets) >> 32);
}

#endif  // VALUE_BUCKET_H_
