#include "storage/resident_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

namespace host_tables {
namespace {
// Constants of linux/mman.h since Linux 5.14, which older headers lack.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;
constexpr std::int64_t kPagesAtOnce = 16;  // Number of pages that a thread reads before it takes the next ones.

std::int64_t page_bytes() {
  static const std::int64_t bytes = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void ResidentPages::add_part(const MappedPart& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::lock_guard<std::shared_mutex> parts_lock(parts_mutex_);
  const std::int64_t first = part.start / page_bytes();
  parts_[first] = part;
  last_use_.resize(static_cast<std::size_t>(first + static_cast<std::int64_t>(part.bytes) / page_bytes()), kAbsent);
}

void ResidentPages::remove_part(const MappedPart& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::lock_guard<std::shared_mutex> parts_lock(parts_mutex_);
  const std::int64_t first = part.start / page_bytes();
  parts_.erase(first);
  const auto begin = last_use_.begin() + first;
  const auto end = begin + static_cast<std::int64_t>(part.bytes) / page_bytes();
  num_resident_ -= std::count_if(begin, end, [](std::uint32_t tick) { return tick != kAbsent; });
  std::fill(begin, end, kAbsent);
}

template <typename Visit>
void ResidentPages::in_runs(const std::vector<std::int64_t>& pages, int num_threads, const Visit& visit) const {
  const std::int64_t count = static_cast<std::int64_t>(pages.size());
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t start; (start = next.fetch_add(kPagesAtOnce)) < count;) {
      visit_range(pages, start, std::min(start + kPagesAtOnce, count), visit);
    }
  };
  // These are no threads of OpenMP, because they would slow down its other parallel regions: once OpenMP has started
  // more threads than there are cores, all of its threads sleep instead of waiting actively for their next task.
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(num_threads));
  try {
    for (int i = 1; i < num_threads && i * kPagesAtOnce < count; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system starts no more threads. Those that run do all the work.
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

template <typename Visit>
void ResidentPages::visit_range(const std::vector<std::int64_t>& pages, std::int64_t start, std::int64_t end,
                                const Visit& visit) const {
  for (std::int64_t i = start; i < end;) {
    const std::int64_t first = pages[static_cast<std::size_t>(i)];
    // Parts that are side by side in the file need not be so in the address space.
    const auto after = parts_.upper_bound(first);
    const MappedPart part = after == parts_.begin() ? MappedPart{} : std::prev(after)->second;
    const std::int64_t part_start = part.start / page_bytes();
    const std::int64_t part_end = part_start + static_cast<std::int64_t>(part.bytes) / page_bytes();
    std::int64_t length = 1;
    while (i + length < end && pages[static_cast<std::size_t>(i + length)] == first + length &&
           first + length < part_end) {
      ++length;
    }
    i += length;
    if (first >= part_end) continue;  // The part was unmapped.
    visit(static_cast<char*>(part.data) + (first - part_start) * page_bytes(), first * page_bytes(),
          length * page_bytes());
  }
}

void ResidentPages::mark(const std::vector<PageRun>& runs, std::vector<std::int64_t>* missing) {
  ++now_;
  for (const PageRun& run : runs) {
    for (std::int64_t page = run.first; page < run.first + run.count; ++page) {
      std::uint32_t& tick = last_use_[static_cast<std::size_t>(page)];
      if (tick == kAbsent) {
        if (missing != nullptr) missing->push_back(page);
        ++num_resident_;
      }
      tick = now_;
    }
  }
}

void ResidentPages::note(const std::vector<PageRun>& runs, int num_threads, std::int64_t most_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mark(runs, nullptr);
  drop_leaving(num_threads);
  let_go(most_bytes / page_bytes(), num_threads);
}

void ResidentPages::read_ahead(const std::vector<PageRun>& runs, bool will_change, int num_threads,
                               std::int64_t most_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::int64_t> missing;
  mark(runs, &missing);
  drop_leaving(num_threads);
  std::sort(missing.begin(), missing.end());
  populate(missing, will_change, num_threads);
  let_go(most_bytes / page_bytes(), num_threads);
}

void ResidentPages::drop_leaving(int num_threads) {
  std::vector<std::int64_t> pages;  // A page that was used meanwhile stays.
  for (const std::int64_t page : leaving_) {
    if (last_use_[static_cast<std::size_t>(page)] != kLeaving) continue;
    last_use_[static_cast<std::size_t>(page)] = kAbsent;
    pages.push_back(page);
  }
  num_resident_ -= static_cast<std::int64_t>(pages.size());
  leaving_.clear();
  drop(pages, num_threads);
}

void ResidentPages::populate(const std::vector<std::int64_t>& pages, bool will_change, int num_threads) const {
  in_runs(pages, num_threads, [=](char* data, std::int64_t, std::int64_t num_bytes) {
    const std::size_t bytes = static_cast<std::size_t>(num_bytes);
    // A kernel before Linux 5.14 does not know this advice. It begins to read the pages with the older one.
    if (madvise(data, bytes, will_change ? kPopulateWrite : kPopulateRead) != 0 && errno == EINVAL) {
      madvise(data, bytes, MADV_WILLNEED);
    }
  });
}

void ResidentPages::drop(const std::vector<std::int64_t>& pages, int num_threads) const {
  in_runs(pages, num_threads, [this](char* data, std::int64_t start, std::int64_t bytes) {
    // The first call removes the pages from the address space, the second from the page cache. Pages with changes that
    // are not written yet stay in the page cache. (MADV_PAGEOUT does both, but took many times as long.)
    madvise(data, static_cast<std::size_t>(bytes), MADV_DONTNEED);
    posix_fadvise(descriptor_, start, bytes, POSIX_FADV_DONTNEED);
  });
}

void ResidentPages::read_once(const std::vector<PageRun>& runs, int num_threads, const std::function<void()>& use) {
  std::vector<std::int64_t> absent;
  {
    const std::shared_lock<std::shared_mutex> lock(parts_mutex_);
    for (const PageRun& run : runs) {
      for (std::int64_t page = run.first; page < run.first + run.count; ++page) {
        if (__atomic_load_n(&last_use_[static_cast<std::size_t>(page)], __ATOMIC_RELAXED) == kAbsent) {
          absent.push_back(page);
        }
      }
    }
    std::sort(absent.begin(), absent.end());
    absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
    populate(absent, false, num_threads);
  }
  use();
  const std::shared_lock<std::shared_mutex> lock(parts_mutex_);
  drop(absent, num_threads);
}

void ResidentPages::let_go(std::int64_t most_pages, int num_threads) {
  if (num_resident_ <= most_pages) return;
  // Let some more pages go than necessary, so that not every batch has to search for them.
  const std::int64_t excess = num_resident_ - most_pages + most_pages / 64;
  ages_.clear();
  std::copy_if(last_use_.begin(), last_use_.end(), std::back_inserter(ages_),
               [this](std::uint32_t tick) { return tick >= kFirstTick && tick < now_; });
  const std::int64_t count = std::min(excess, static_cast<std::int64_t>(ages_.size()));
  if (count == 0) return;
  const auto last = ages_.begin() + count - 1;
  std::nth_element(ages_.begin(), last, ages_.end());
  const std::uint32_t youngest = *last;
  std::vector<std::int64_t> chosen;
  for (std::size_t page = 0; page < last_use_.size() && static_cast<std::int64_t>(chosen.size()) < count; ++page) {
    if (last_use_[page] < kFirstTick || last_use_[page] > youngest) continue;
    last_use_[page] = kLeaving;
    chosen.push_back(static_cast<std::int64_t>(page));
  }
  in_runs(chosen, num_threads, [this](char*, std::int64_t start, std::int64_t bytes) {
    static_cast<void>(sync_file_range(descriptor_, start, bytes, SYNC_FILE_RANGE_WRITE));
  });
  leaving_ = std::move(chosen);
}

}  // namespace host_tables
