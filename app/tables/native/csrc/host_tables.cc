#include "host_tables.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "storage/changed_slots.h"
#include "kernels/initial_rows.h"
#include "kernels/kernels.h"
#include "storage/row_map.h"
#include "storage/row_slabs.h"
#include "storage/scratch_file.h"
#include "storage/slot_groups.h"
#include "storage/snapshot.h"
#include "storage/unique_ids.h"

namespace {

host_tables::RowLayout layout_of(const HostTablesSpec& spec) {
  return {spec.embedding_dim,    spec.deep_states,        spec.deep_scalars,    spec.wide_states,
          spec.keeps_means != 0, spec.has_last_step != 0, spec.is_bfloat16 != 0};
}

}  // namespace

struct HostTables {
  HostTables(const HostTablesSpec& given, const host_tables::Kernels& chosen)
      : spec(given),
        kernels(chosen),
        layout(layout_of(given)),
        initial(host_tables::initial_values(given)),
        file(given.file, given.page_lost_message),
        map(given.vocabulary_size),
        slabs(given.vocabulary_size, layout, file_or_null()),
        groups(given.id_stride, layout, file.is_open()),
        snapshot(given.vocabulary_size, layout, file_or_null()) {}

  host_tables::ScratchFile* file_or_null() { return file.is_open() ? &file : nullptr; }

  HostTablesSpec spec;
  const host_tables::Kernels& kernels;
  host_tables::RowLayout layout;
  host_tables::InitialValues initial;
  host_tables::ScratchFile file;
  // Held while rows get or lose slots, and while host_tables_read_ahead finds slots.
  mutable std::mutex placing;
  host_tables::RowMap map;
  host_tables::RowSlabs slabs;
  host_tables::SlotGroups groups;
  // The number of slots that were ever given: those of touched rows, of untouched rows in groups, and the free ones.
  int64_t num_slots = 0;
  mutable int64_t num_noted_slots = 0;  // number of slots whose pages were passed to ResidentPages of the scratch file
  std::vector<int32_t> free_slots;  // slots of removed rows; all their values are 0
  host_tables::ChangedSlots changed;
  std::vector<host_tables::WrittenArrays> written;  // one entry per slot while rows are loaded, else empty
  host_tables::Snapshot snapshot;
  host_tables::UniqueScratchPool unique_scratch;
};

namespace {

// Slots are int32, and the map stores slot + 1.
constexpr int64_t kMostSlots = (int64_t{1} << 31) - 2;
// A pass over all rows reads the scratch file in ranges of kSlotsAtOnce slots. kReadingThreads threads read at the same
// time, because a disk is faster with several requests at once.
constexpr int64_t kSlotsAtOnce = 8192;
constexpr int kReadingThreads = 8;
constexpr auto kAllWritten = static_cast<host_tables::WrittenArrays>(-1);

using host_tables::UniqueScratch;
using host_tables::UniqueStatus;

HostTablesStatus status_of(UniqueStatus status) {
  switch (status) {
    case UniqueStatus::kBadId:
      return HOST_TABLES_BAD_ID;
    case UniqueStatus::kNoMemory:
      return HOST_TABLES_NO_MEMORY;
    default:
      return HOST_TABLES_OK;
  }
}

// Return the number of threads for work on `count` rows or positions.
int threads_for(const HostTables* tables, int64_t count) {
  return count < tables->spec.worth_threads ? 1 : tables->spec.num_threads;
}

// Return the number of threads if the work per row or position is small: finding a row, or adding one wide gradient.
int threads_for_little(const HostTables* tables, int64_t count) { return threads_for(tables, count / 16); }

// Return the number of slots, in use or free, once `num_new` more rows are touched.
int64_t slots_with(const HostTables* tables, int64_t num_new) {
  return std::max(tables->num_slots, tables->map.size() + num_new);
}

// Return the number of slots once each of `row_ids` whose slot is -1 has one. May throw std::bad_alloc.
int64_t slots_after_placing(HostTables* tables, const int64_t* row_ids, int64_t count, const int32_t* slots) {
  std::vector<int64_t> new_rows;
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < 0) new_rows.push_back(row_ids[i]);
  }
  if (!tables->groups.is_used()) return slots_with(tables, static_cast<int64_t>(new_rows.size()));
  return tables->num_slots + tables->groups.slots_needed(new_rows);
}

// Give each of `row_ids` whose slot is -1 a slot without values. Return false, without changes, if there is no
// memory. May throw std::bad_alloc.
bool place_rows(HostTables* tables, const int64_t* row_ids, int64_t count, int32_t* slots) {
  const std::lock_guard<std::mutex> lock(tables->placing);
  const int64_t num_new = std::count_if(slots, slots + count, [](int32_t slot) { return slot < 0; });
  const int64_t num_slots = slots_after_placing(tables, row_ids, count, slots);
  if (num_slots > kMostSlots || !tables->slabs.reserve(num_slots) || !tables->map.reserve(num_new)) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] >= 0) continue;
    if (!tables->free_slots.empty()) {
      slots[i] = tables->free_slots.back();
      tables->free_slots.pop_back();
    } else if (tables->groups.is_used()) {
      slots[i] = tables->groups.slot_of(row_ids[i], &tables->num_slots);
    } else {
      slots[i] = static_cast<int32_t>(tables->num_slots++);
    }
    tables->map.insert(row_ids[i], slots[i]);
  }
  return true;
}

// Call read(start, end) for consecutive ranges of `slots` [count]. If the rows lie in a file, the pages of a range are
// read ahead, and dropped afterwards.
template <typename Read>
void pass_over(const HostTables* tables, const int32_t* slots, int64_t count, const Read& read) {
  if (!tables->file.is_open()) return read(0, count);
  for (int64_t start = 0; start < count; start += kSlotsAtOnce) {
    const int64_t end = std::min(start + kSlotsAtOnce, count);
    try {
      std::vector<host_tables::PageRun> runs;
      {
        const std::lock_guard<std::mutex> lock(tables->placing);
        for (int64_t i = start; i < end; ++i) tables->slabs.append_pages(slots[i], &runs);
      }
      tables->file.pages().read_once(runs, kReadingThreads, [&] { read(start, end); });
    } catch (const std::bad_alloc&) {
      read(start, end);
    }
  }
}

// Make slabs for `vocabulary_size` ids. An open snapshot continues with the old ones. Return false, without changes,
// if there is no memory.
bool grow_slabs(HostTables* tables, int64_t vocabulary_size) {
  const std::lock_guard<std::mutex> lock(tables->placing);
  try {
    if (!tables->slabs.grow(vocabulary_size, tables->num_slots)) return false;
    tables->num_noted_slots = 0;  // They may have other pages now.
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!tables->snapshot.is_open()) tables->slabs.drop_replaced();
  return true;
}

}  // namespace

HostTablesStatus host_tables_create(const HostTablesSpec* spec, HostTables** tables) {
  const host_tables::Kernels* const kernels = host_tables::choose_kernels();
  if (kernels == nullptr) return HOST_TABLES_UNKNOWN_ISA;
  *tables = new (std::nothrow) HostTables(*spec, *kernels);
  return *tables == nullptr ? HOST_TABLES_NO_MEMORY : HOST_TABLES_OK;
}

void host_tables_destroy(HostTables* tables) { delete tables; }

const char* host_tables_isa(const HostTables* tables) { return tables->kernels.isa; }

HostTablesStatus host_tables_find_lists(const HostTables* tables, const void* ids, int32_t id_bytes, int64_t num_rows,
                                        int64_t num_fields, const int32_t* lengths, const int32_t* means, void* values,
                                        int32_t* first, int32_t* places, float* weights, int64_t* num_values) {
  const auto run = [&](auto typed_id) {
    using Id = decltype(typed_id);
    return host_tables::find_lists(static_cast<const Id*>(ids), num_rows, num_fields, lengths, means,
                                   tables->spec.vocabulary_size, static_cast<Id*>(values), first, places, weights,
                                   num_values);
  };
  return status_of(id_bytes == 4 ? run(int32_t{}) : run(int64_t{}));
}

HostTablesStatus host_tables_unique(HostTables* tables, const void* ids, int32_t id_bytes, int64_t count,
                                    int64_t* values, int32_t* inverse, int32_t* offsets, int32_t* positions,
                                    int64_t* num_unique) {
  const auto run = [&](const auto* typed_ids, UniqueScratch& scratch) {
    return host_tables::unique_ids(typed_ids, count, tables->spec.vocabulary_size, scratch, values, inverse, offsets,
                                   positions, num_unique);
  };
  try {
    std::unique_ptr<UniqueScratch> scratch = tables->unique_scratch.take();
    const UniqueStatus status = id_bytes == 4 ? run(static_cast<const int32_t*>(ids), *scratch)
                                              : run(static_cast<const int64_t*>(ids), *scratch);
    tables->unique_scratch.give_back(std::move(scratch));
    return status_of(status);
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

int64_t host_tables_find(const HostTables* tables, const int64_t* row_ids, int64_t count, int32_t* slots) {
  constexpr int64_t kPrefetchAhead = 16;
  int64_t num_untouched = 0;
#pragma omp parallel for num_threads(threads_for_little(tables, count)) schedule(static) reduction(+ : num_untouched)
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) tables->map.prefetch(row_ids[i + kPrefetchAhead]);
    slots[i] = tables->map.find(row_ids[i]);
    num_untouched += slots[i] < 0;
  }
  return num_untouched;
}

int32_t host_tables_file_error(const HostTables* tables) { return tables->file.error(); }

int32_t host_tables_failed_write(const HostTables* tables) {
  return tables->file.is_open() ? tables->file.failed_write() : 0;
}

void host_tables_read_ahead(const HostTables* tables, const int64_t* row_ids, int64_t count, int32_t will_change,
                            int64_t most_bytes) {
  if (!tables->file.is_open()) return;
  try {
    std::vector<host_tables::PageRun> fresh, runs;
    {
      const std::lock_guard<std::mutex> lock(tables->placing);
      for (; tables->num_noted_slots < tables->num_slots; ++tables->num_noted_slots) {
        tables->slabs.append_pages(static_cast<int32_t>(tables->num_noted_slots), &fresh);
      }
      for (int64_t i = 0; i < count; ++i) {
        if (row_ids[i] >= tables->spec.vocabulary_size) continue;
        int32_t slot = tables->map.find(row_ids[i]);
        // The pages of a new row have been written, and may have been dropped, if its group already has slots.
        if (slot < 0) slot = tables->groups.known_slot(row_ids[i]);
        if (slot >= 0) tables->slabs.append_pages(slot, &runs);
      }
    }
    if (!fresh.empty()) tables->file.pages().note(fresh, kReadingThreads, most_bytes);
    if (count > 0) tables->file.pages().read_ahead(runs, will_change != 0, kReadingThreads, most_bytes);
  } catch (const std::bad_alloc&) {
    // There is no memory to read the pages ahead. Each page is then read when a row in it is used.
  }
}

int64_t host_tables_growth_bytes(const HostTables* tables, int64_t num_new) {
  const std::size_t bytes =
      tables->map.growth_bytes(num_new) + tables->slabs.growth_bytes(slots_with(tables, num_new));
  return static_cast<int64_t>(bytes);
}

void host_tables_planned_bytes(const HostTables* tables, int64_t num_rows, int64_t* row_bytes, int64_t* index_bytes) {
  *row_bytes = static_cast<int64_t>(tables->slabs.written_bytes(num_rows));
  *index_bytes = static_cast<int64_t>(tables->map.growth_bytes(num_rows));
}

int64_t host_tables_uncommitted_bytes(const HostTables* tables) {
  const std::size_t bytes = tables->map.uncommitted_bytes() + tables->slabs.uncommitted_bytes() +
                            tables->snapshot.uncommitted_bytes();
  return static_cast<int64_t>(bytes);
}

HostTablesStatus host_tables_touch(HostTables* tables, const int64_t* row_ids, int64_t count, int32_t* slots) {
  try {
    std::vector<int64_t> places, new_rows;
    for (int64_t i = 0; i < count; ++i) {
      if (slots[i] < 0) places.push_back(i);
    }
    new_rows.reserve(places.size());
    std::vector<int32_t> new_slots(places.size());
    if (!place_rows(tables, row_ids, count, slots)) return HOST_TABLES_NO_MEMORY;
    for (std::size_t i = 0; i < places.size(); ++i) {
      new_rows.push_back(row_ids[places[i]]);
      new_slots[i] = slots[places[i]];
    }
    const int64_t num_new = static_cast<int64_t>(new_rows.size());
    tables->kernels.initialize(tables->slabs.view(), tables->initial, new_rows.data(), new_slots.data(), num_new,
                               nullptr, threads_for(tables, num_new));
    return HOST_TABLES_OK;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

void host_tables_lookup(const HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                        const HostTablesHistory* history, float* deep, float* wide, float* wide_rows,
                        double* squared_norms, float* computed, const float** rows) {
  tables->kernels.lookup(tables->slabs.view(), tables->initial, *batch, slots, history, deep, wide, wide_rows,
                         squared_norms, computed, rows, threads_for(tables, batch->num_positions));
}

int32_t host_tables_all_finite(const HostTables* tables, const float* values, int64_t count) {
  return tables->kernels.all_finite(values, count, tables->spec.num_threads);
}

void host_tables_update_wide(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                             const float* gradient, float scale, const HostTablesStep* step) {
  const auto optimizer = static_cast<HostTablesOptimizer>(tables->spec.wide_optimizer);
  tables->kernels.update_wide(tables->slabs.view(), optimizer, *batch, slots, gradient, scale, *step,
                              threads_for_little(tables, batch->num_positions));
}

void host_tables_update_deep(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                             const float* gradient, float scale, const HostTablesStep* step,
                             const HostTablesHistory* history, float* caught_up, int32_t is_caught_up,
                             uint64_t rounding_key) {
  const auto optimizer = static_cast<HostTablesOptimizer>(tables->spec.deep_optimizer);
  tables->kernels.update_deep(tables->slabs.view(), optimizer, *batch, slots, gradient, scale, *step, history,
                              caught_up, is_caught_up != 0, rounding_key, threads_for(tables, batch->num_positions));
}

void host_tables_advance_means(HostTables* tables, const int64_t* row_ids, const int32_t* slots, int64_t count,
                               const HostTablesHistory* history, const HostTablesMeans* means,
                               uint64_t rounding_key) {
  tables->kernels.advance_means(tables->slabs.view(), row_ids, slots, count, history, *means, rounding_key,
                                threads_for(tables, count));
}

void host_tables_read_means(const HostTables* tables, const int64_t* row_ids, const int32_t* slots, int64_t count,
                            const HostTablesHistory* history, const HostTablesMeans* means, float* scratch,
                            float* deep, float* wide) {
  tables->kernels.read_means(tables->slabs.view(), tables->initial, row_ids, slots, count, history, *means, scratch,
                             deep, wide, threads_for(tables, count));
}

HostTablesStatus host_tables_catch_up(const HostTablesRowArrays* arrays, const HostTablesHistory* history,
                                      const HostTablesMeans* means, int32_t num_threads) {
  const host_tables::Kernels* const kernels = host_tables::choose_kernels();
  if (kernels == nullptr) return HOST_TABLES_UNKNOWN_ISA;
  kernels->catch_up_arrays(*arrays, *history, means, num_threads);
  return HOST_TABLES_OK;
}

void host_tables_expand(const HostTables* tables, const HostTablesBatch* batch, const float* deep_rows,
                        const float* wide_rows, float* deep, float* wide) {
  tables->kernels.expand(*batch, tables->spec.embedding_dim, deep_rows, wide_rows, deep, wide,
                         threads_for(tables, batch->num_positions));
}

void host_tables_sum_by_id(const HostTables* tables, const HostTablesBatch* batch, const float* deep,
                           const float* wide, float* deep_sums, float* wide_sums) {
  tables->kernels.sum_by_id(*batch, tables->spec.embedding_dim, deep, wide, deep_sums, wide_sums,
                            threads_for(tables, batch->num_positions));
}

int64_t host_tables_num_touched(const HostTables* tables) { return tables->map.size(); }

int64_t host_tables_num_slots(const HostTables* tables) { return tables->num_slots; }

HostTablesStatus host_tables_touched(const HostTables* tables, int64_t* row_ids, int32_t* slots) {
  try {
    tables->map.entries(row_ids, slots);
    return HOST_TABLES_OK;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

HostTablesStatus host_tables_mark_changed(HostTables* tables, const int32_t* slots, int64_t count) {
  try {
    tables->changed.mark(slots, count, tables->num_slots);
    return HOST_TABLES_OK;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

void host_tables_take_changed(HostTables* tables, uint8_t* changed) {
  tables->changed.take(changed, tables->num_slots);
}

HostTablesStatus host_tables_open_snapshot(HostTables* tables, const int32_t* slots, int64_t count) {
  try {
    const bool opened = tables->snapshot.open(tables->slabs.view(), tables->num_slots, slots, count);
    return opened ? HOST_TABLES_OK : HOST_TABLES_NO_MEMORY;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

int64_t host_tables_preserve_bytes(const HostTables* tables, int64_t count) {
  return tables->snapshot.is_open() ? static_cast<int64_t>(tables->snapshot.growth_bytes(count)) : 0;
}

HostTablesStatus host_tables_preserve(HostTables* tables, const int32_t* slots, int64_t count) {
  if (!tables->snapshot.is_open()) return HOST_TABLES_OK;
  try {
    return tables->snapshot.preserve(slots, count, tables->spec.num_threads) ? HOST_TABLES_OK : HOST_TABLES_NO_MEMORY;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

void host_tables_read_snapshot(const HostTables* tables, HostTablesTable table, int32_t array, const int32_t* slots,
                               int64_t count, void* values, int32_t num_threads) {
  const int64_t bytes = host_tables::slot_array({nullptr, 0, tables->layout}, table, array).bytes;
  pass_over(tables, slots, count, [&](int64_t start, int64_t end) {
    tables->snapshot.read(table, array, slots + start, end - start, static_cast<char*>(values) + start * bytes,
                          num_threads);
  });
}

void host_tables_close_snapshot(HostTables* tables) {
  tables->snapshot.close();
  tables->slabs.drop_replaced();
}

void host_tables_read(const HostTables* tables, HostTablesTable table, int32_t array, const int32_t* slots,
                      int64_t count, void* values) {
  char* const out = static_cast<char*>(values);
  const host_tables::SlotArray states = host_tables::slot_array(tables->slabs.view(), table, array);
  pass_over(tables, slots, count, [&](int64_t start, int64_t end) {
#pragma omp parallel for num_threads(tables->spec.num_threads) schedule(static)
    for (int64_t i = start; i < end; ++i) {
      host_tables::copy_values(values_of(states, slots[i]), states.bytes, out + i * states.bytes);
    }
  });
}

HostTablesStatus host_tables_place(HostTables* tables, const int64_t* row_ids, int64_t count, int32_t* slots) {
  try {
    // Allocate the flags first, so that no row is placed if there is no memory for them.
    const std::size_t num_slots = static_cast<std::size_t>(slots_after_placing(tables, row_ids, count, slots));
    // A slot without a row needs no initial values, so it counts as written.
    if (num_slots > tables->written.size()) tables->written.resize(num_slots, kAllWritten);
    std::vector<std::size_t> fresh;
    for (int64_t i = 0; i < count; ++i) {
      if (slots[i] < 0) fresh.push_back(static_cast<std::size_t>(i));
    }
    if (!place_rows(tables, row_ids, count, slots)) return HOST_TABLES_NO_MEMORY;
    tables->num_noted_slots = tables->num_slots;  // The caller reads pages of new slots ahead before it writes.
    for (const std::size_t i : fresh) tables->written[static_cast<std::size_t>(slots[i])] = 0;
    return HOST_TABLES_OK;
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
}

int32_t host_tables_write(HostTables* tables, HostTablesTable table, int32_t array, const int32_t* slots,
                          int64_t count, const void* values) {
  return tables->kernels.write_rows(tables->slabs.view(), table, array, slots, count, static_cast<const char*>(values),
                                    tables->written.empty() ? nullptr : tables->written.data(),
                                    tables->spec.num_threads);
}

HostTablesStatus host_tables_end_writing(HostTables* tables) {
  const unsigned all = host_tables::initial_arrays(tables->initial);
  const std::size_t num_rows = static_cast<std::size_t>(tables->map.size());
  try {
    if (std::any_of(tables->written.begin(), tables->written.end(), [all](unsigned written) { return all & ~written; })) {
      std::vector<int64_t> row_ids(num_rows);
      std::vector<int32_t> slots(num_rows);
      tables->map.entries(row_ids.data(), slots.data());
      tables->kernels.initialize(tables->slabs.view(), tables->initial, row_ids.data(), slots.data(),
                                 tables->map.size(), tables->written.data(), tables->spec.num_threads);
    }
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
  tables->written = {};
  return HOST_TABLES_OK;
}

HostTablesStatus host_tables_remove(HostTables* tables, const int64_t* row_ids, const int32_t* slots, int64_t count) {
  const std::lock_guard<std::mutex> lock(tables->placing);
  const int64_t most_freed = count * (tables->groups.is_used() ? tables->groups.size() : 1);
  try {
    tables->free_slots.reserve(tables->free_slots.size() + static_cast<std::size_t>(most_freed));
  } catch (const std::bad_alloc&) {
    return HOST_TABLES_NO_MEMORY;
  }
  for (int64_t i = 0; i < count; ++i) {
    tables->map.erase(row_ids[i]);
    host_tables::clear_slot(tables->slabs.view(), slots[i]);
    if (tables->groups.known_slot(row_ids[i]) != slots[i]) tables->free_slots.push_back(slots[i]);
  }
  // Any row may get a free slot, so a group that loses a row no longer owns its slots.
  for (int64_t i = 0; i < count; ++i) {
    tables->groups.dissolve(row_ids[i], [tables](int64_t row_id, int32_t slot) {
      const bool is_touched = row_id < tables->spec.vocabulary_size && tables->map.find(row_id) == slot;
      if (!is_touched) tables->free_slots.push_back(slot);
    });
  }
  return HOST_TABLES_OK;
}

HostTablesStatus host_tables_renumber(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                      int64_t vocabulary_size) {
  const int64_t num_rows = tables->map.size();
  host_tables::RowMap map(vocabulary_size);
  if (!map.reserve(num_rows) || !grow_slabs(tables, vocabulary_size)) return HOST_TABLES_NO_MEMORY;
  const std::lock_guard<std::mutex> lock(tables->placing);
  if (tables->groups.is_used()) {
    try {
      std::vector<bool> is_taken(static_cast<std::size_t>(tables->num_slots));
      for (int64_t i = 0; i < num_rows; ++i) is_taken[static_cast<std::size_t>(slots[i])] = true;
      std::vector<int32_t> free_slots;
      for (int64_t slot = 0; slot < tables->num_slots; ++slot) {
        if (!is_taken[static_cast<std::size_t>(slot)]) free_slots.push_back(static_cast<int32_t>(slot));
      }
      tables->free_slots = std::move(free_slots);
    } catch (const std::bad_alloc&) {
      return HOST_TABLES_NO_MEMORY;
    }
    tables->groups.clear();
  }
  for (int64_t i = 0; i < num_rows; ++i) map.insert(row_ids[i], slots[i]);
  tables->map = std::move(map);
  tables->spec.vocabulary_size = vocabulary_size;
  return HOST_TABLES_OK;
}

HostTablesStatus host_tables_grow(HostTables* tables, int64_t vocabulary_size) {
  if (!grow_slabs(tables, vocabulary_size)) return HOST_TABLES_NO_MEMORY;
  const std::lock_guard<std::mutex> lock(tables->placing);
  if (!tables->map.grow(vocabulary_size)) return HOST_TABLES_NO_MEMORY;
  tables->spec.vocabulary_size = vocabulary_size;
  return HOST_TABLES_OK;
}

void host_tables_clear(HostTables* tables) {
  const std::lock_guard<std::mutex> lock(tables->placing);
  tables->map = host_tables::RowMap(tables->spec.vocabulary_size);
  tables->slabs = host_tables::RowSlabs(tables->spec.vocabulary_size, tables->layout, tables->file_or_null());
  tables->groups.clear();
  tables->num_slots = tables->num_noted_slots = 0;
  tables->free_slots = {};
  tables->changed = host_tables::ChangedSlots();
  tables->written = {};
  tables->snapshot =
      host_tables::Snapshot(tables->spec.vocabulary_size, tables->layout, tables->file_or_null());
}
