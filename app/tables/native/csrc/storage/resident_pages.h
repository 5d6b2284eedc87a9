// Decide which pages of a scratch file stay in memory, read pages ahead of their use, and write changed pages behind.
//
// If this were left to the system, it would notice a lack of memory only when a page is needed. It would then write all
// changed pages, also those that the next step changes again, and make the step wait. So this class notes when each
// page was last used, and lets those go that were not used for the longest time: it begins to write them, and drops
// them some steps later. The system's own choice is the fallback. It never matters for correctness: a page that was
// dropped too early is read again.

#ifndef RESIDENT_PAGES_H_
#define RESIDENT_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace host_tables {

// A part of a file that is mapped into memory.
struct MappedPart {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::int64_t start = 0;  // offset in the file
};

// Consecutive pages of the file, which are numbered from its start.
struct PageRun {
  std::int64_t first, count;
};

// All functions may be called by several threads at once.
class ResidentPages {
 public:
  explicit ResidentPages(int descriptor) : descriptor_(descriptor) {}

  void add_part(const MappedPart& part);
  // Forget a part before it is unmapped.
  void remove_part(const MappedPart& part);
  // Note that the pages of `runs` are used now, and read those that are not in memory. If `will_change`, also prepare
  // them for writes. Then let other pages go until at most `most_bytes` are in memory. Pages that cannot be read are
  // left to whoever uses them. May throw std::bad_alloc, which leaves some pages to whoever uses them.
  void read_ahead(const std::vector<PageRun>& runs, bool will_change, int num_threads, std::int64_t most_bytes);
  // Note that the pages of `runs` were written and are in memory, for example because they have new rows. Then let
  // other pages go until at most `most_bytes` are in memory.
  void note(const std::vector<PageRun>& runs, int num_threads, std::int64_t most_bytes);
  // Read the pages of `runs`, call use(), and drop those of the pages that were not in memory before. A pass over all
  // rows reads them in this way, so that it does not drive out the pages that steps use. May throw std::bad_alloc.
  void read_once(const std::vector<PageRun>& runs, int num_threads, const std::function<void()>& use);

 private:
  // Values of last_use_ for pages that are not in memory, and that are being written before they are dropped.
  static constexpr std::uint32_t kAbsent = 0, kLeaving = 1, kFirstTick = 2;

  // Mark the pages of `runs` as used now. Append those that were not in memory to `missing`.
  void mark(const std::vector<PageRun>& runs, std::vector<std::int64_t>* missing);
  // Drop the pages that let_go() has chosen, except those that were used since.
  void drop_leaving(int num_threads);
  // If more than `most_pages` are in memory, choose those that were not used for the longest time, and begin to write
  // them.
  void let_go(std::int64_t most_pages, int num_threads);
  void populate(const std::vector<std::int64_t>& pages, bool will_change, int num_threads) const;
  void drop(const std::vector<std::int64_t>& pages, int num_threads) const;
  // Call visit(data, start, bytes) for each run of consecutive numbers in the ascending `pages` that are mapped side by
  // side: its address, its offset in the file, and its length. A long run is divided among the threads.
  template <typename Visit>
  void in_runs(const std::vector<std::int64_t>& pages, int num_threads, const Visit& visit) const;
  // Do so for the elements `start` to `end` of `pages`.
  template <typename Visit>
  void visit_range(const std::vector<std::int64_t>& pages, std::int64_t start, std::int64_t end,
                   const Visit& visit) const;

  int descriptor_;
  std::mutex mutex_;
  // Held together with mutex_ while parts are added or removed. A pass over all rows reads `parts_` only, so it takes
  // just this mutex, shared.
  std::shared_mutex parts_mutex_;
  std::map<std::int64_t, MappedPart> parts_;  // by their first page
  std::vector<std::uint32_t> last_use_;       // for each page of the file
  std::vector<std::int64_t> leaving_;         // the pages that let_go() has chosen, ascending
  std::vector<std::uint32_t> ages_;  // memory of let_go()
  std::uint32_t now_ = kFirstTick;
  std::int64_t num_resident_ = 0;
};

}  // namespace host_tables

#endif  // RESIDENT_PAGES_H_
