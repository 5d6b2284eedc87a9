// Copy to memory past the caches, for output that is larger than them. An ordinary store first reads the cache line
// that it is about to overwrite.

#ifndef STREAM_H_
#define STREAM_H_

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace host_tables {

constexpr std::int64_t kLineFloats = 16;  // floats per cache line
constexpr std::int64_t kLineBytes = kLineFloats * sizeof(float);

// Return the number of bytes up to the start of the next cache line, 0 at the start of one.
static inline std::int64_t bytes_to_line(const void* target) {
  return -reinterpret_cast<std::intptr_t>(target) & (kLineBytes - 1);
}

// Return true if stream_bytes may write to `target`, that is, if the output consists of whole cache lines.
static inline bool can_stream(const void* target, std::int64_t bytes) {
  return bytes % kLineBytes == 0 && bytes_to_line(target) == 0;
}

// Copy a row past the caches. Source and target may be the same.
static inline __attribute__((always_inline)) void stream_row(const float* source, std::int64_t width, float* target) {
#if defined(__AVX512F__)
  for (std::int64_t i = 0; i < width; i += 16) _mm512_stream_ps(target + i, _mm512_loadu_ps(source + i));
#elif defined(__AVX__)
  for (std::int64_t i = 0; i < width; i += 8) _mm256_stream_ps(target + i, _mm256_loadu_ps(source + i));
#elif defined(__SSE2__)
  for (std::int64_t i = 0; i < width; i += 4) _mm_stream_ps(target + i, _mm_loadu_ps(source + i));
#else
  std::memmove(target, source, static_cast<std::size_t>(width) * sizeof(float));
#endif
}

static inline void stream_bytes(const char* source, std::int64_t bytes, char* target) {
  stream_row(reinterpret_cast<const float*>(source), bytes / static_cast<std::int64_t>(sizeof(float)),
             reinterpret_cast<float*>(target));
}

// Make streamed data visible to other threads.
static inline void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Qualifiers of functions that only prefetch. GCC 12 sees no effect in such a function and removes its calls, unless
// it is inlined before that analysis.
#define PREFETCH_FUNCTION static inline __attribute__((always_inline)) void

template <typename Value>
PREFETCH_FUNCTION prefetch_row(const Value* row, std::int64_t width) {
  constexpr std::int64_t kLineValues = kLineBytes / sizeof(Value);
  for (std::int64_t i = 0; i < width; i += kLineValues) __builtin_prefetch(row + i);
  // bfloat16 rows seldom start at a cache line, so they may reach into one more
  if (sizeof(Value) < sizeof(float)) __builtin_prefetch(row + width - 1);
}

}  // namespace host_tables

#endif  // STREAM_H_
