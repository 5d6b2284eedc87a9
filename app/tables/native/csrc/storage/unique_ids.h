// Extract the values of a batch's lists, and find the distinct ids of a batch. Ids are found by direct addressing
// or, for a large vocabulary, by a hash. A counting sort then groups the positions by id.

#ifndef UNIQUE_IDS_H_
#define UNIQUE_IDS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "storage/huge_memory.h"

namespace host_tables {

// Memory for the number that unique_ids gave each id. With direct addressing nothing has to be cleared between
// batches: an entry counts only if `values` holds the id at that index (Briggs & Torczon, "An efficient
// representation for sparse sets", 1993).
struct UniqueScratch {
  HugeMemory memory;
  std::size_t bytes = 0;
};

// Scratch memory for calls that may run at the same time. It is kept for later calls.
class UniqueScratchPool {
 public:
  std::unique_ptr<UniqueScratch> take();
  void give_back(std::unique_ptr<UniqueScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<UniqueScratch>> free_;
};

enum class UniqueStatus { kOk, kBadId, kNoMemory };

// See host_tables_find_lists in host_tables.h.
template <typename Id>
UniqueStatus find_lists(const Id* ids, std::int64_t num_rows, std::int64_t num_fields, const std::int32_t* lengths,
                        const std::int32_t* means, std::int64_t vocabulary_size, Id* values, std::int32_t* first,
                        std::int32_t* places, float* weights, std::int64_t* num_values);

// See host_tables_unique in host_tables.h.
template <typename Id>
UniqueStatus unique_ids(const Id* ids, std::int64_t count, std::int64_t vocabulary_size, UniqueScratch& scratch,
                        std::int64_t* values, std::int32_t* inverse, std::int32_t* offsets, std::int32_t* positions,
                        std::int64_t* num_unique);

}  // namespace host_tables

#endif  // UNIQUE_IDS_H_
