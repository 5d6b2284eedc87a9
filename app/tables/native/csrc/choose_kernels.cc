#include <cstdlib>
#include <cstring>

#include "kernels/kernels.h"

namespace host_tables {

namespace plain {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool runs_here;
};

}  // namespace

const Kernels* choose_kernels() {
  const Candidate widest_first[] = {
#if defined(__x86_64__)
      {&avx512::kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512vl")},
      {&avx2::kernels, __builtin_cpu_supports("avx2") != 0},
#endif
      {&plain::kernels, true},
  };
  const char* const wanted = std::getenv("HOST_TABLES_ISA");
  for (const Candidate& candidate : widest_first) {
    const bool is_wanted = wanted == nullptr || std::strcmp(wanted, candidate.kernels->isa) == 0;
    if (candidate.runs_here && is_wanted) return candidate.kernels;
  }
  return nullptr;
}

}  // namespace host_tables
