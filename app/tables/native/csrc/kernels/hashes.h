// Hash numbers to bits that are as good as random.

#ifndef HASHES_H_
#define HASHES_H_

#include <cstdint>

namespace host_tables {

constexpr std::uint64_t kGolden64 = 0x9E3779B97F4A7C15;  // SplitMix64's increment
constexpr std::uint32_t kGolden32 = 0x9E3779B9;

// SplitMix64's finalizer (Steele, Lea & Flood, OOPSLA 2014).
static inline std::uint64_t mix64(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// The finalizer of MurmurHash3 (A. Appleby). It has 32 bits because vectors have no products of 64 bits.
template <typename Words>
static inline __attribute__((always_inline)) Words mix32(Words values) {
  values = (values ^ (values >> 16)) * 0x85EBCA6B;
  values = (values ^ (values >> 13)) * 0xC2B2AE35;
  return values ^ (values >> 16);
}

}  // namespace host_tables

#endif  // HASHES_H_
