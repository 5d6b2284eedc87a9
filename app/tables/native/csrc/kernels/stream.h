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
constexpr std::int64_t kLineBytes = kLineFloats * sizeof(float);

// Bytes to the next line's start, 0 at one.
static inline std::int64_t bytes_to_line(const void* target) {
  return -reinterpret_cast<std::intptr_t>(target) & (kLineBytes - 1);
}

// True if stream_bytes may write to `target`: whole lines only.
static inline bool can_stream(const void* target, std::int64_t bytes) {
  return bytes % kLineBytes == 0 && bytes_to_line(target) == 0;
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

static inline void stream_bytes(const char* source, std::int64_t bytes, char* target) {
  stream_row(reinterpret_cast<const float*>(source), bytes / static_cast<std::int64_t>(sizeof(float)),
             reinterpret_cast<float*>(target));
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

template <typename Value>
PREFETCH_FUNCTION prefetch_row(const Value* row, std::int64_t width) {
  constexpr std::int64_t kLineValues = kLineBytes / sizeof(Value);
  for (std::int64_t i = 0; i < width; i += kLineValues) __builtin_prefetch(row + i);
  if (sizeof(Value) < sizeof(float)) __builtin_prefetch(row + width - 1);  // such rows seldom begin a line
}

}  // namespace host_tables

#endif  // STREAM_H_
