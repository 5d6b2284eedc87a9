// Own the memory of one slab of rows: huge pages, or a part of a scratch file.

#ifndef SLAB_MEMORY_H_
#define SLAB_MEMORY_H_

#include <cstddef>
#include <utility>

#include "storage/huge_memory.h"
#include "storage/scratch_file.h"

namespace host_tables {

class SlabMemory {
 public:
  // Take zeroed memory, from `file` if it is not null. data() is null if there is none.
  SlabMemory(std::size_t bytes, ScratchFile* file) : file_(file) {
    if (file == nullptr) {
      memory_ = HugeMemory(bytes);
    } else {
      part_ = file->map(bytes);
    }
  }
  ~SlabMemory() {
    if (part_.data != nullptr) file_->unmap(part_);
  }
  SlabMemory(SlabMemory&& other) noexcept
      : file_(other.file_), memory_(std::move(other.memory_)), part_(std::exchange(other.part_, {})) {}
  SlabMemory& operator=(SlabMemory&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    std::swap(part_, other.part_);
    return *this;
  }

  void* data() const { return file_ == nullptr ? memory_.data() : part_.data; }
  const ScratchFile::Part& part() const { return part_; }
  // Return the bytes that were mapped but not written yet, if the system must still find memory for them.
  std::size_t uncommitted_bytes() const { return memory_.uncommitted_bytes(); }

 private:
  ScratchFile* file_;
  HugeMemory memory_;
  ScratchFile::Part part_;
};

}  // namespace host_tables

#endif  // SLAB_MEMORY_H_
