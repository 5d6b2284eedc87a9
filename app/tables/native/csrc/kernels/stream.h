// Copies that bypass the caches on their way out, for output larger than them: an ordinary store first
// reads the cache line that it is about to overwrite.

#ifndef STREAM_H_
#define STREAM_H_

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace host_tables {

constexpr std::int64_t kLineFloats = 16;  // a cache line

// True if stream_row may write rows of `width` floats to `target`: whole lines only.
static inline bool can_stream(const float* target, std::int64_t width) {
  return width % kLineFloats == 0 && reinterpret_cast<std::uintptr_t>(target) % (kLineFloats * sizeof(float)) == 0;
}

// Source and target may be the same.
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

// Makes streamed rows visible to other threads.
static inline void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// A function that only prefetches has no effect that GCC 12 sees: unless it is inlined before that analysis,
// its calls are removed.
#define PREFETCH_FUNCTION static inline __attribute__((always_inline)) void

PREFETCH_FUNCTION prefetch_row(const float* row, std::int64_t width) {
  for (std::int64_t i = 0; i < width; i += kLineFloats) __builtin_prefetch(row + i);
}

// As many lines of memory may be on their way to the second-level cache, and far fewer to the first.
PREFETCH_FUNCTION prefetch_row_to_l2(const float* row, std::int64_t width) {
  for (std::int64_t i = 0; i < width; i += kLineFloats) __builtin_prefetch(row + i, 0, 2);
}

}  // namespace host_tables

#endif  // STREAM_H_
