#include "storage/scratch_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "host_tables.h"

namespace host_tables {
namespace {

// All mapped parts of this process, for the signal handler. A process may have some 65,000 mappings. An entry is free
// if its message is null.
struct Mapped {
  std::atomic<const char*> message{nullptr};
  std::atomic<std::uintptr_t> start{0}, end{0};
};
std::array<Mapped, 65536> all_mapped;
std::atomic<std::size_t> num_entries{0};
struct sigaction previous_action;

void on_bus_error(int number, siginfo_t* info, void* context) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const std::size_t count = num_entries.load();
  for (std::size_t i = 0; i < count; ++i) {
    const char* const message = all_mapped[i].message.load();
    if (message == nullptr || address < all_mapped[i].start.load() || address >= all_mapped[i].end.load()) continue;
    // The process ends whether the message can be written or not.
    if (write(STDERR_FILENO, message, std::strlen(message)) < 0) _exit(HOST_TABLES_PAGE_LOST);
    _exit(HOST_TABLES_PAGE_LOST);
  }
  // The address is in no part of a scratch file. Do what would have happened without this signal handler.
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // The instruction is repeated, and the signal ends the process.
  }
}

void install_handler() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  static_cast<void>(installed);
}

void remember(const ScratchFile::Part& part, const char* message) {
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(part.data);
  for (std::size_t i = 0; i < all_mapped.size(); ++i) {
    const char* expected = nullptr;
    if (!all_mapped[i].message.compare_exchange_strong(expected, message)) continue;
    all_mapped[i].start = start;
    all_mapped[i].end = start + part.bytes;
    std::size_t count = num_entries.load();
    while (count <= i && !num_entries.compare_exchange_weak(count, i + 1)) {
    }
    return;
  }
}

void forget(const ScratchFile::Part& part) {
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(part.data);
  const std::size_t count = num_entries.load();
  for (std::size_t i = 0; i < count; ++i) {
    if (all_mapped[i].message.load() == nullptr || all_mapped[i].start.load() != start) continue;
    all_mapped[i].start = all_mapped[i].end = 0;
    all_mapped[i].message = nullptr;
  }
}

}  // namespace

ScratchFile::ScratchFile(int descriptor, const char* lost_message)
    : descriptor_(descriptor), lost_message_(lost_message == nullptr ? "" : lost_message), pages_(descriptor) {
  if (is_open()) install_handler();
}

ScratchFile::Part ScratchFile::map(std::size_t bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Part part;
  part.bytes = (bytes + page - 1) / page * page;
  part.start = size_;
  error_ = posix_fallocate(descriptor_, part.start, static_cast<off_t>(part.bytes));
  if (error_ != 0) {
    if (ftruncate(descriptor_, size_) != 0) return {};  // Give back the blocks that were allocated.
    return {};
  }
  void* const data = mmap(nullptr, part.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, part.start);
  if (data == MAP_FAILED) {
    error_ = errno;
    return {};
  }
  // Rows lie in no order that the system could guess, so it must not read further pages beside the one that is needed.
  madvise(data, part.bytes, MADV_RANDOM);
  part.data = data;
  size_ += static_cast<std::int64_t>(part.bytes);
  remember(part, lost_message_.c_str());
  pages_.add_part(part);
  return part;
}

void ScratchFile::unmap(const Part& part) {
  pages_.remove_part(part);
  forget(part);
  munmap(part.data, part.bytes);
  // A file system that cannot free a part of a file frees all of it when the file is closed.
  static_cast<void>(
      fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, part.start, static_cast<off_t>(part.bytes)));
}

int ScratchFile::failed_write() const {
  // Waiting for no more than one page also reports failed writes of all other pages.
  return sync_file_range(descriptor_, 0, 1, SYNC_FILE_RANGE_WAIT_BEFORE) == 0 ? 0 : errno;
}

}  // namespace host_tables
