// Store the deep rows and their optimizer state in bfloat16: convert values to float32 when they are read, round them
// up or down at random when they are written.
//
// The rounding equals that of app/tables/rounding.py bit for bit. It needs integer operations only, so it runs on
// every processor.

#ifndef BFLOAT16_H_
#define BFLOAT16_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "host_tables.h"
#include "kernels/finite.h"
#include "kernels/hashes.h"
#include "storage/slots.h"

namespace host_tables {

constexpr int kMostStates = 4;  // Largest number of states per row: Adam's three, and the running mean.
constexpr std::int32_t kLargestBits = 0x7F7F0000;  // bits of the largest bfloat16, as a float

static inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float widened(Bfloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

static inline float widened(float value) { return value; }

// Round a finite value to the nearest bfloat16, ties to even. The value must not be close to the largest bfloat16.
static inline Bfloat16 nearest(float value) {
  const std::uint32_t bits = bits_of(value);
  return static_cast<Bfloat16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Return 32 bits of a hash of the row, from which the rounding noise of its values is made. `key` is a hash of the seed
// and the step.
static inline std::uint32_t row_word(std::uint64_t key, std::int64_t row_id) {
  return static_cast<std::uint32_t>(mix64(key + kGolden64 * (static_cast<std::uint64_t>(row_id) + 1)));
}

// A vector of columns. Explicit vectors are used because, for a width known at compile time, the compiler unrolls a
// loop before it recognizes that it can vectorize it.
#if defined(__AVX2__)
typedef std::uint32_t Words __attribute__((vector_size(32)));
constexpr Words kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
typedef std::uint32_t Words __attribute__((vector_size(16)));
constexpr Words kLaneNumbers = {0, 1, 2, 3};
#endif
constexpr std::int64_t kLanes = sizeof(Words) / sizeof(std::uint32_t);
typedef std::int32_t SignedWords __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
typedef Bfloat16 Halves __attribute__((vector_size(kLanes * sizeof(Bfloat16))));

#define LANE_FUNCTION static inline __attribute__((always_inline))

// Return the rounding noise, in [0, 2^16), of several columns of a row's array number kArray (0 ... 3), from the hashes
// of these columns.
template <int kArray>
LANE_FUNCTION Words noise_of_array(Words hash) {
  static_assert(kArray < kMostStates);
  if constexpr (kArray == 0) return hash & 0xFFFF;
  if constexpr (kArray == 1) return hash >> 16;
  return hash * (kArray == 2 ? 0x85EBCA77 : 0xC2B2AE3D) >> 16;
}

// Add noise and drop the lower 16 bits. Values above the largest bfloat16 are truncated, so that finite values stay
// finite.
LANE_FUNCTION Words rounded(Words bits, Words noise) {
  const Words may_rise = reinterpret_cast<Words>(reinterpret_cast<SignedWords>(bits & 0x7FFFFFFF) < kLargestBits);
  return (bits + (noise & may_rise)) >> 16;
}

LANE_FUNCTION void widen_lanes(const Bfloat16* values, float* wide) {
  Halves halves;
  std::memcpy(&halves, values, sizeof halves);
#if defined(__AVX2__)  // GCC 12 would compile the conversion to four instructions.
  const Words bits = reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves))) << 16;
#else
  const Words bits = __builtin_convertvector(halves, Words) << 16;
#endif
  std::memcpy(wide, &bits, sizeof bits);
}

template <int kArray>
LANE_FUNCTION void store_lanes(Words hash, const float* values, Bfloat16* stored) {
  Words bits;
  std::memcpy(&bits, values, sizeof bits);
  const Halves halves = __builtin_convertvector(rounded(bits, noise_of_array<kArray>(hash)), Halves);
  std::memcpy(stored, &halves, sizeof halves);
}

// Return the hashes of the kLanes columns from `column` on, in the row whose hash is `word`.
LANE_FUNCTION Words hash_lanes(std::uint32_t word, std::int64_t column) {
  return mix32(kLaneNumbers * kGolden32 + (static_cast<std::uint32_t>(column) * kGolden32 + word));
}

// Call `of_lanes(i)` for each full vector of `width` columns, then `of_rest(i, count)` for the remaining columns.
template <typename OfLanes, typename OfRest>
LANE_FUNCTION void by_lanes(std::int64_t width, const OfLanes& of_lanes, const OfRest& of_rest) {
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) of_lanes(i);
  if (i < width) of_rest(i, static_cast<std::size_t>(width - i));
}

LANE_FUNCTION void widen(const Bfloat16* values, std::int64_t width, float* wide) {
  by_lanes(
      width, [&](std::int64_t i) { widen_lanes(values + i, wide + i); },
      [&](std::int64_t i, std::size_t count) {
        Bfloat16 padded[kLanes] = {};
        float wide_lanes[kLanes];
        std::memcpy(padded, values + i, count * sizeof(Bfloat16));
        widen_lanes(padded, wide_lanes);
        std::memcpy(wide + i, wide_lanes, count * sizeof(float));
      });
}

// Return values as floats: in place if they are floats, otherwise widened into `room`.
static inline const float* as_floats(const float* values, std::int64_t, float*) { return values; }
static inline const float* as_floats(const Bfloat16* values, std::int64_t width, float* room) {
  widen(values, width, room);
  return room;
}

template <int kArray>
LANE_FUNCTION void store_rest(Words hash, const float* values, std::size_t count, Bfloat16* stored) {
  float padded[kLanes] = {};
  Bfloat16 rounded_lanes[kLanes];
  std::memcpy(padded, values, count * sizeof(float));
  store_lanes<kArray>(hash, padded, rounded_lanes);
  std::memcpy(stored, rounded_lanes, count * sizeof(Bfloat16));
}

// Round and store `width` columns, from `column` on, of array kArray of the row with this `row_word`.
template <int kArray>
LANE_FUNCTION void store_array(std::uint32_t word, std::int64_t column, std::int64_t width, const float* values,
                               Bfloat16* stored) {
  by_lanes(
      width, [&](std::int64_t i) { store_lanes<kArray>(hash_lanes(word, column + i), values + i, stored + i); },
      [&](std::int64_t i, std::size_t count) {
        store_rest<kArray>(hash_lanes(word, column + i), values + i, count, stored + i);
      });
}

// Call store_array for an array whose number is not known at compile time.
static inline void store_any_array(int array, std::uint32_t word, std::int64_t column, std::int64_t width,
                                   const float* values, Bfloat16* stored) {
  if (array == 0) return store_array<0>(word, column, width, values, stored);
  if (array == 1) return store_array<1>(word, column, width, values, stored);
  if (array == 2) return store_array<2>(word, column, width, values, stored);
  store_array<3>(word, column, width, values, stored);
}

// Round and store columns of several arrays. `values` is [kStates, stride]; the arrays in `stored` are
// `stored_stride` apart.
template <int... kArrays>
LANE_FUNCTION void store_states(std::integer_sequence<int, kArrays...>, std::uint32_t word, std::int64_t column,
                                std::int64_t width, const float* values, std::int64_t stride, Bfloat16* stored,
                                std::int64_t stored_stride) {
  by_lanes(
      width,
      [&](std::int64_t i) {
        const Words hash = hash_lanes(word, column + i);
        (store_lanes<kArrays>(hash, values + kArrays * stride + i, stored + kArrays * stored_stride + i), ...);
      },
      [&](std::int64_t i, std::size_t count) {
        const Words hash = hash_lanes(word, column + i);
        (store_rest<kArrays>(hash, values + kArrays * stride + i, count, stored + kArrays * stored_stride + i), ...);
      });
}

// Call `take(states, stride)` with `width` <= kMost columns, from `column` on, of the first kStates arrays of a
// slot. The values are float32 and may be changed in place. Array k begins at states + k * stride. `word` is only
// used for bfloat16.
template <typename Value, int kStates, std::int64_t kMost, typename Take>
LANE_FUNCTION void change_states(const Slots& slots, std::int32_t slot, std::uint32_t word, std::int64_t column,
                                 std::int64_t width, std::int64_t embedding_dim, const Take& take) {
  Value* const stored = deep_state<Value>(slots, slot) + column;
  if constexpr (std::is_same_v<Value, float>) {
    take(stored, embedding_dim);
  } else {
    alignas(64) float states[kStates * kMost];
    for (int k = 0; k < kStates; ++k) widen(stored + k * embedding_dim, width, states + k * kMost);
    take(states, kMost);
    store_states(std::make_integer_sequence<int, kStates>(), word, column, width, states, kMost, stored, embedding_dim);
  }
}

}  // namespace host_tables

#endif  // BFLOAT16_H_
