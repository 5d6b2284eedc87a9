// Map parts of a scratch file into memory. The rows of tables that are larger than memory lie there: the system's page
// cache keeps the pages that were used last, and writes the others to the file.
//
// Disk blocks are allocated before a part is mapped, so a full disk is an error of map() and not a signal. If a page
// cannot be read later, the system sends SIGBUS. A signal handler then writes a message and ends the process.

#ifndef SCRATCH_FILE_H_
#define SCRATCH_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "storage/resident_pages.h"

namespace host_tables {

class ScratchFile {
 public:
  using Part = MappedPart;

  // `descriptor` is an open file, or -1 if there is none. The caller closes it. `lost_message` is what the process
  // writes to its standard error before it ends because a page cannot be read.
  ScratchFile(int descriptor, const char* lost_message);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  // Map `bytes` zero bytes at the end of the file. If that is impossible, data is null, and error() says why.
  Part map(std::size_t bytes);
  // Unmap a part and give its disk blocks back. Its place in the file is not used again.
  void unmap(const Part& part);
  // Return errno of the last call of map() that failed, or 0.
  int error() const { return error_; }
  // Which of the file's pages are in memory.
  ResidentPages& pages() const { return pages_; }
  // Return 0, or errno if the system failed to write a page since the last call. The page's content is then lost.
  int failed_write() const;

 private:
  int descriptor_;
  std::string lost_message_;
  std::int64_t size_ = 0;
  int error_ = 0;
  mutable ResidentPages pages_;
};

}  // namespace host_tables

#endif  // SCRATCH_FILE_H_
