// Collect the pages of a scratch file that a batch needs, and read them ahead.

#ifndef PAGE_RANGES_H_
#define PAGE_RANGES_H_

#include <cstdint>
#include <vector>

#include "storage/scratch_file.h"

namespace host_tables {

class PageRanges {
 public:
  // Add the pages of a range of a mapped part. `start` is an offset in the part. May throw std::bad_alloc.
  void add(const ScratchFile::Part& part, std::int64_t start, std::int64_t bytes);
  // Read all pages that were added. If `will_change`, also let the next write to them cause no page fault. Pages that
  // cannot be read are left to whoever uses them first.
  void read_ahead(bool will_change, int num_threads);

 private:
  std::vector<std::uintptr_t> pages_;  // addresses of pages, in any order, some repeatedly
};

}  // namespace host_tables

#endif  // PAGE_RANGES_H_
