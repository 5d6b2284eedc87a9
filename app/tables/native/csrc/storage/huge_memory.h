// Allocate zeroed memory directly from the system, on huge pages if it is large enough. Random access to rows on 4
// KiB pages would miss the TLB every time. The system commits a page when it is first written.

#ifndef HUGE_MEMORY_H_
#define HUGE_MEMORY_H_

#include <cstddef>

namespace host_tables {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

class HugeMemory {
 public:
  HugeMemory() = default;
  explicit HugeMemory(std::size_t bytes);  // data() is null if the system has no memory
  ~HugeMemory();
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;

  void* data() const { return data_; }
  // Return the number of bytes that HugeMemory(bytes) maps.
  static std::size_t mapped_bytes(std::size_t bytes);
  // Return the bytes that were mapped but not written yet. The system has not given these pages out, and counts them
  // as free.
  std::size_t uncommitted_bytes() const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  // True once less than a huge page is uncommitted. The count is then not computed again.
  mutable bool is_committed_ = false;
};

}  // namespace host_tables

#endif  // HUGE_MEMORY_H_
