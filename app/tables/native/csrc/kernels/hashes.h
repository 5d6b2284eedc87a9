// Hash numbers to bits that are as good as random.

#ifndef HASHES_H_
#define HASHES_H_

#include <cstdint>

namespace host_tables {

constexpr std::uint64_t kGolden64 = 0x9E3779B97F4A7C15;  // SplitMix64's increment
constexpr std::uint32_t kGolden32 = 0x9E3779B9;

// Hash a 64-bit number with the finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
static inline std::uint64_t mix64(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Hash several 32-bit words at once with the finalizer of MurmurHash3 (A. Appleby). The words have 32 bits, because
// vector instructions cannot multiply 64-bit numbers on every machine.
template <typename Words>
static inline __attribute__((always_inline)) Words mix32(Words values) {
  values = (values ^ (values >> 16)) * 0x85EBCA6B;
  values = (values ^ (values >> 13)) * 0xC2B2AE35;
  return values ^ (values >> 16);
}

}  // namespace host_tables

#endif  // HASHES_H_
