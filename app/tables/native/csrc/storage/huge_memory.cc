#include "storage/huge_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace host_tables {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Map `bytes` aligned to a huge page, by mapping one huge page more and unmapping both ends.
void* map_aligned(std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(mapped);
  const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  if (head > 0) munmap(start, head);
  if (head < kHugePage) munmap(start + head + bytes, kHugePage - head);
  return start + head;
}

}  // namespace

HugeMemory::HugeMemory(std::size_t bytes) : bytes_(mapped_bytes(bytes)) {
  data_ = map_aligned(bytes_);
  // This is only advice. A kernel without huge pages works too, more slowly.
  if (data_ != nullptr && bytes_ >= kHugePage) madvise(data_, bytes_, MADV_HUGEPAGE);
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      is_committed_(std::exchange(other.is_committed_, false)) {}

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(is_committed_, other.is_committed_);
  return *this;
}

std::size_t HugeMemory::uncommitted_bytes() const {
  if (data_ == nullptr || is_committed_) return 0;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> in_memory;
  std::size_t missing = 0;
  for (std::size_t start = 0; start < bytes_; start += in_memory.size() * page) {
    const std::size_t bytes = std::min(bytes_ - start, in_memory.size() * page);
    if (mincore(static_cast<char*>(data_) + start, bytes, in_memory.data()) != 0) continue;
    const auto end = in_memory.begin() + static_cast<std::ptrdiff_t>((bytes + page - 1) / page);
    missing += page * static_cast<std::size_t>(
                          std::count_if(in_memory.begin(), end, [](unsigned char bits) { return (bits & 1) == 0; }));
  }
  is_committed_ = missing < kHugePage;
  return missing;
}

std::size_t HugeMemory::mapped_bytes(std::size_t bytes) {
  return bytes < kHugePage ? round_up(bytes, kPage) : round_up(bytes, kHugePage);
}

}  // namespace host_tables
