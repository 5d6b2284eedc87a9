// Zeroed memory straight from the system, on huge pages where it is large enough: random rows on 4 KiB
// pages miss the TLB at every access. Pages are committed at their first write.

#ifndef HUGE_MEMORY_H_
#define HUGE_MEMORY_H_

#include <cstddef>

namespace host_tables {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

class HugeMemory {
 public:
  HugeMemory() = default;
  explicit HugeMemory(std::size_t bytes);  // data() is null where the system has no room
  ~HugeMemory();
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;

  void* data() const { return data_; }
  // The number of bytes that HugeMemory(bytes) maps.
  static std::size_t mapped_bytes(std::size_t bytes);
  // Bytes that were mapped and not written to yet: the system still has them to give, and counts them as free.
  std::size_t uncommitted_bytes() const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  mutable bool is_committed_ = false;  // but for less than a huge page: not looked at again
};

}  // namespace host_tables

#endif  // HUGE_MEMORY_H_
