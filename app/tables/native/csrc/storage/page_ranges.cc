#include "storage/page_ranges.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace host_tables {
namespace {

// Constants of linux/mman.h since Linux 5.14, which older headers lack.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;
constexpr std::int64_t kRangesAtOnce = 16;

std::uintptr_t page_bytes() {
  static const std::uintptr_t bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void PageRanges::add(const ScratchFile::Part& part, std::int64_t start, std::int64_t bytes) {
  if (bytes == 0) return;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(part.data) + static_cast<std::uintptr_t>(start);
  const std::uintptr_t end = first + static_cast<std::uintptr_t>(bytes);
  for (std::uintptr_t page = first / page_bytes() * page_bytes(); page < end; page += page_bytes()) {
    if (pages_.empty() || pages_.back() != page) pages_.push_back(page);
  }
}

void PageRanges::read_ahead(bool will_change, int num_threads) {
  std::sort(pages_.begin(), pages_.end());
  pages_.erase(std::unique(pages_.begin(), pages_.end()), pages_.end());
  const std::int64_t count = static_cast<std::int64_t>(pages_.size());
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (std::int64_t start = 0; start < count; start += kRangesAtOnce) {
    const std::int64_t end = std::min(start + kRangesAtOnce, count);
    for (std::int64_t i = start; i < end;) {
      std::int64_t next = i + 1;
      while (next < end && pages_[static_cast<std::size_t>(next)] ==
                               pages_[static_cast<std::size_t>(next - 1)] + page_bytes()) {
        ++next;
      }
      void* const first = reinterpret_cast<void*>(pages_[static_cast<std::size_t>(i)]);
      const std::size_t bytes = static_cast<std::size_t>(next - i) * page_bytes();
      // A kernel before Linux 5.14 does not know this advice. It begins to read the pages with the older one.
      if (madvise(first, bytes, will_change ? kPopulateWrite : kPopulateRead) != 0 && errno == EINVAL) {
        madvise(first, bytes, MADV_WILLNEED);
      }
      i = next;
    }
  }
}

}  // namespace host_tables
