// Declare the C interface of the native host tables. The Python side is app/tables/native/tables.py.
//
// Array shapes are written with these letters: B rows of a batch, C looked-up fields, D embedding width, V vocabulary
// size, U distinct ids of a batch, n positions. A plain field has one position, a list field has one per value. A slot
// is the number of the place in memory where the state of one touched row lies; a row is touched once a step has
// updated it or it was loaded. Arrays are dense and row-major. Outputs must not overlap inputs or each other.
//
// Threads: only one call at a time may run on a handle, with three exceptions. host_tables_unique reads nothing that
// other calls change, so it may run beside any of them. The comments at host_tables_read_ahead and at
// host_tables_open_snapshot describe the other two. Results have the same bits for any number of threads and any
// instruction set.

#ifndef HOST_TABLES_H_
#define HOST_TABLES_H_

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define HOST_TABLES_API __attribute__((visibility("default")))

typedef enum {
  HOST_TABLES_OK = 0,
  HOST_TABLES_BAD_ID = 1,      // an id is outside 0 ... V-1
  // The system has no memory, or the scratch file has no room (host_tables_file_error). The tables are unchanged.
  HOST_TABLES_NO_MEMORY = 2,
  HOST_TABLES_UNKNOWN_ISA = 3  // the variable HOST_TABLES_ISA names no instruction set of this build and machine
} HostTablesStatus;

// Exit status of a process that cannot read a page of the scratch file in which its table rows lie.
typedef enum { HOST_TABLES_PAGE_LOST = 5 } HostTablesExitStatus;

typedef enum { HOST_TABLES_WIDE = 0, HOST_TABLES_DEEP = 1 } HostTablesTable;

typedef enum {
  HOST_TABLES_LAZY_ADAM = 0,
  HOST_TABLES_ADAM = 1,  // Adam on every row at every step; see StepHistory in app/tables/optimizers.py
  HOST_TABLES_ADAGRAD = 2,
  HOST_TABLES_ROWWISE_ADAGRAD = 3,
  HOST_TABLES_SGD = 4,
  HOST_TABLES_FTRL = 5,
  HOST_TABLES_SCHEDULED_FTRL = 6,  // the learning rate changes, so each row stores the rate of its last step
  HOST_TABLES_PARTIAL_ROWWISE_ADAM = 7
} HostTablesOptimizer;

typedef struct HostTables HostTables;

typedef struct {
  int64_t vocabulary_size;
  int64_t embedding_dim;
  uint64_t seed;
  float initial_scale;  // initial deep values are uniform in +-initial_scale
  int32_t num_threads;
  // Work on fewer rows or positions than this runs on one thread, because waking others would take longer.
  int32_t worth_threads;
  int32_t wide_optimizer;  // FTRL, SCHEDULED_FTRL, ADAGRAD or SGD; ignored if the caller takes the steps
  int32_t deep_optimizer;  // a HostTablesOptimizer; ignored if the caller takes the steps
  // Numbers of the state arrays that TablesSpec.state_arrays() in app/tables/interface.py lists, by kind. The arrays
  // have the order of that list.
  int32_t wide_states;    // arrays of the wide table, with one value per row each
  int32_t deep_states;    // arrays of the deep table with D values per row, the row itself first
  int32_t deep_scalars;   // arrays of the deep table with one 4-byte value per row
  int32_t has_last_step;  // not 0 if the first of the deep_scalars is the row's last step
  int32_t keeps_means;    // not 0 if the last arrays of both tables are those of running means
  int32_t is_bfloat16;    // not 0 if the deep_states are bfloat16; all other arrays are float32
  // Number of the one array, other than the row itself, that does not start at 0. -1: there is none.
  int32_t wide_initial_array, deep_initial_array;
  float wide_initial_value, deep_initial_value;
  // Descriptor of an empty scratch file for the rows, or -1 to keep the rows in memory. The caller closes the file
  // after the tables are destroyed. If a page of the file cannot be read, the process writes `page_lost_message` to its
  // standard error and ends with HOST_TABLES_PAGE_LOST.
  int32_t file;
  const char* page_lost_message;
  int64_t id_stride;  // the ids of these tables are multiples of id_stride plus a constant
} HostTablesSpec;

// The distinct ids of a batch, as host_tables_unique returns them, and the values of its list fields (fields with
// several ids), as host_tables_find_lists returns them. If no field is a list, the last three pointers are null: the
// p-th position then belongs to the p-th pair of batch row and field, with weight 1.
typedef struct {
  int64_t num_rows;          // B
  int64_t num_fields;        // C
  int64_t num_positions;     // n
  int64_t num_unique;        // U
  const int64_t* values;     // [U] in the order of first positions
  const int32_t* inverse;    // [n] for each position, the index of its id in `values`
  const int32_t* offsets;    // [U + 1] id u has entries offsets[u] ... offsets[u + 1] - 1 of `positions`
  const int32_t* positions;  // [n] grouped by id, ascending within an id
  const int32_t* first;      // [B * C + 1] field f has the positions first[f] ... first[f + 1] - 1
  const int32_t* places;     // [n] the field (0 ... B * C - 1) of each position
  const float* weights;      // [n] the factor of each position's row in its field's pooled row
} HostTablesBatch;

// The settings of one optimizer step. An optimizer ignores settings that it does not have.
typedef struct {
  float learning_rate;  // for Adam multiplied by the bias corrections of this step
  float beta1, beta2, epsilon;
  float l1, l2;   // FTRL only
  float l2_coef;  // l2_coef * row is added to the gradient of each distinct row
} HostTablesStep;

// HOST_TABLES_ADAM only: the data of the steps 1 ... `step` with which a row takes the steps that it missed, because
// their batches did not have the row. Arrays are indexed by step number.
typedef struct {
  int64_t step;
  const float* rates;  // learning rates multiplied by both bias corrections
  const float* epsilons;
  const double* rate_sums;    // sums of the rates up to and including each step
  const float* beta2_powers;  // beta2 ** n at index n
  float beta1, beta2, l2_coef;
  int32_t most_exact_steps;
} HostTablesHistory;

// The data of steps 1 ... `step` that running means of rows need; see RunningMean in app/tables/optimizers.py.
typedef struct {
  int64_t step;
  const double* powers;  // decay ** n at index n
  const float* rates;    // factor of the mean's update at each step
} HostTablesMeans;

// Rows with both moments of Adam and, if `means` is not null, their running means. All are [count, width]. Each row
// is as it was after its own entry of `last_steps` [count], its mean as it was before that step.
typedef struct {
  int64_t count, width;
  float* rows;
  float* first_moments;
  float* second_moments;
  float* means;
  const int32_t* last_steps;
} HostTablesRowArrays;

// Create a handle with no touched row in *tables. May return HOST_TABLES_NO_MEMORY or HOST_TABLES_UNKNOWN_ISA.
HOST_TABLES_API HostTablesStatus host_tables_create(const HostTablesSpec* spec, HostTables** tables);
HOST_TABLES_API void host_tables_destroy(HostTables* tables);

// Return the instruction set of the handle's kernels: "avx512", "avx2" or "plain".
HOST_TABLES_API const char* host_tables_isa(const HostTables* tables);

// Extract the values of a batch whose fields may be lists. `ids` is [B, sum of `lengths`], int32 or int64 by
// `id_bytes`. In a list, -1 marks a position without a value, which may not be the first. `lengths` is [C]. `means`
// [C] is not 0 for a field whose row is the mean of its values' rows. values, places and weights must have room for
// all of `ids`. After HOST_TABLES_BAD_ID the outputs are undefined.
HOST_TABLES_API HostTablesStatus host_tables_find_lists(const HostTables* tables, const void* ids, int32_t id_bytes,
                                                        int64_t num_rows, int64_t num_fields, const int32_t* lengths,
                                                        const int32_t* means, void* values, int32_t* first,
                                                        int32_t* places, float* weights, int64_t* num_values);

// Find the distinct ids of `ids` [count], int32 or int64 by `id_bytes`. values, inverse and positions must have room
// for `count` entries, offsets for count + 1. After HOST_TABLES_BAD_ID the outputs are undefined.
HOST_TABLES_API HostTablesStatus host_tables_unique(HostTables* tables, const void* ids, int32_t id_bytes,
                                                    int64_t count, int64_t* values, int32_t* inverse,
                                                    int32_t* offsets, int32_t* positions, int64_t* num_unique);

// Look up the slots [count] of `row_ids`, -1 for untouched rows. Return the number of untouched rows.
HOST_TABLES_API int64_t host_tables_find(const HostTables* tables, const int64_t* row_ids, int64_t count,
                                         int32_t* slots);

// Return errno of the last attempt to enlarge the scratch file, 0 if it succeeded or the rows are in memory.
HOST_TABLES_API int32_t host_tables_file_error(const HostTables* tables);

// Return 0, or errno if the system could not write a page to the scratch file since the last call of this function.
// Rows are then lost.
HOST_TABLES_API int32_t host_tables_failed_write(const HostTables* tables);

// Read the pages of the rows `row_ids` [count] from the scratch file ahead of their use. If `will_change` is not 0, the
// pages are prepared for an update too. Drop the pages that were not used for the longest time from memory, so that at
// most `most_bytes` of the file stay in memory; new rows count as used now. This function may run beside any other
// call. Without a file it does nothing.
HOST_TABLES_API void host_tables_read_ahead(const HostTables* tables, const int64_t* row_ids, int64_t count,
                                            int32_t will_change, int64_t most_bytes);

// Return the bytes of memory that touching `num_new` more rows would take from the system, 0 if the slabs (large blocks
// of memory for rows) have room.
HOST_TABLES_API int64_t host_tables_growth_bytes(const HostTables* tables, int64_t num_new);

// Write the memory that empty tables take once they hold `num_rows` rows: `row_bytes` for their values, and
// `index_bytes` to find their slots. Nothing is allocated.
HOST_TABLES_API void host_tables_planned_bytes(const HostTables* tables, int64_t num_rows, int64_t* row_bytes,
                                               int64_t* index_bytes);

// Return the bytes that were reserved for rows and snapshots but not written yet. The system counts them as free.
HOST_TABLES_API int64_t host_tables_uncommitted_bytes(const HostTables* tables);

// Give each row of the distinct `row_ids` [count] whose slot is -1 a slot with its initial values, and store it in
// `slots`. At most 2^31 - 2 rows may be touched in total. After HOST_TABLES_NO_MEMORY nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_touch(HostTables* tables, const int64_t* row_ids, int64_t count,
                                                   int32_t* slots);

// Look up the rows of a batch. The outputs are deep [B, C * D], wide [B] (the sum over positions in their order),
// and per distinct id wide_rows [U] and the squared norms of the deep rows, squared_norms [U]. `slots` [U] come from
// host_tables_find. With HOST_TABLES_ADAM, rows are returned as after the last step of `history`; otherwise
// `history` is null.
//
// `computed` is memory for rows that are not stored in the form that the lookup needs. With a history it is
// [U, 3 * D], for the values and moments of untouched rows, and of rows that take missed steps. Without a history but
// with list fields it is [U, D]. Otherwise it is not used. `rows` [U] is used with list fields only, for the addresses
// of the deep rows.
HOST_TABLES_API void host_tables_lookup(const HostTables* tables, const HostTablesBatch* batch,
                                        const int32_t* slots, const HostTablesHistory* history, float* deep,
                                        float* wide, float* wide_rows, double* squared_norms, float* computed,
                                        const float** rows);

// Return 1 if all of `values` [count] are finite, else 0.
HOST_TABLES_API int32_t host_tables_all_finite(const HostTables* tables, const float* values, int64_t count);

// Take one step of the wide rows' optimizer. `gradient` [B] counts for each position of a batch row; the sums are
// multiplied by `scale`. No slot may be -1.
HOST_TABLES_API void host_tables_update_wide(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                                             const float* gradient, float scale, const HostTablesStep* step);

// Take one step of the deep rows' optimizer. The sums by id of `gradient` [B, C * D] are multiplied by `scale`. No
// slot may be -1. With HOST_TABLES_ADAM this is step history->step + 1, and `caught_up` is [U, 3 * D]. If
// `is_caught_up`, it is the `computed` of a lookup of this batch with this history, else this call fills it. With
// other optimizers `history` and `caught_up` are null. bfloat16 states are rounded with `rounding_key`, see
// app/tables/rounding.py.
HOST_TABLES_API void host_tables_update_deep(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                                             const float* gradient, float scale, const HostTablesStep* step,
                                             const HostTablesHistory* history, float* caught_up,
                                             int32_t is_caught_up, uint64_t rounding_key);

// Bring the running means of the rows `row_ids` [count], which lie in `slots`, up to `means->step`, the last step so
// far. Call this function before the update of these rows. With HOST_TABLES_ADAM the rows also take the steps of
// `history` that they missed; otherwise `history` is null. `rounding_key` is that of step `means->step`, used as in
// host_tables_update_deep.
HOST_TABLES_API void host_tables_advance_means(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                               int64_t count, const HostTablesHistory* history,
                                               const HostTablesMeans* means, uint64_t rounding_key);

// Return the means after `means->step` (above 0) of `row_ids` [count]: deep [count, D] and wide [count]. `slots`
// come from host_tables_find. With HOST_TABLES_ADAM `scratch` is [count, 3 * D], otherwise it is not used.
HOST_TABLES_API void host_tables_read_means(const HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                            int64_t count, const HostTablesHistory* history,
                                            const HostTablesMeans* means, float* scratch, float* deep, float* wide);

// Let rows that lie in plain arrays take, in place, the steps of `history` that they missed. No tables are involved. If
// the rows have running means, `means` must reach the same step; otherwise it is null. May return
// HOST_TABLES_UNKNOWN_ISA.
HOST_TABLES_API HostTablesStatus host_tables_catch_up(const HostTablesRowArrays* arrays,
                                                      const HostTablesHistory* history, const HostTablesMeans* means,
                                                      int32_t num_threads);

// Handle a batch whose distinct rows lie in another process. expand turns deep_rows [U, D] and wide_rows [U] into
// deep [B, C * D] and wide [B] (the sum over positions in their order). sum_by_id sums gradients of deep and wide to
// deep_sums [U, D] and wide_sums [U] in the order of positions; pass null for a table that is not wanted. Of the
// tables only embedding_dim and num_threads are read.
HOST_TABLES_API void host_tables_expand(const HostTables* tables, const HostTablesBatch* batch, const float* deep_rows,
                                        const float* wide_rows, float* deep, float* wide);
HOST_TABLES_API void host_tables_sum_by_id(const HostTables* tables, const HostTablesBatch* batch, const float* deep,
                                           const float* wide, float* deep_sums, float* wide_sums);

// Return the number of touched rows, the number of slots, and the ids of touched rows, ascending, with their slots.
// All slots are below host_tables_num_slots.
HOST_TABLES_API int64_t host_tables_num_touched(const HostTables* tables);
HOST_TABLES_API int64_t host_tables_num_slots(const HostTables* tables);
HOST_TABLES_API HostTablesStatus host_tables_touched(const HostTables* tables, int64_t* row_ids, int32_t* slots);

// Copy one state array of the rows in `slots` [count] to `values` [count, width]. The width is D for deep states and
// 1 for wide arrays and deep scalars. `array` is the array's number in the order of HostTablesSpec; the row itself
// is 0.
HOST_TABLES_API void host_tables_read(const HostTables* tables, HostTablesTable table, int32_t array,
                                      const int32_t* slots, int64_t count, void* values);

// Write rows, array by array, into tables that were just created or cleared. host_tables_place works as
// host_tables_touch, but does not set values. host_tables_write copies `values` [count, width] into placed rows. It
// returns 1, or 0 if a float is not finite; the tables must then be cleared. host_tables_end_writing sets the arrays
// of placed rows that were not written to their initial values, and must come before any other use. After
// HOST_TABLES_NO_MEMORY the tables must be cleared. At other times host_tables_write overwrites touched rows, for
// steps that the caller takes.
HOST_TABLES_API HostTablesStatus host_tables_place(HostTables* tables, const int64_t* row_ids, int64_t count,
                                                   int32_t* slots);
HOST_TABLES_API int32_t host_tables_write(HostTables* tables, HostTablesTable table, int32_t array,
                                          const int32_t* slots, int64_t count, const void* values);
HOST_TABLES_API HostTablesStatus host_tables_end_writing(HostTables* tables);

// Track updated rows. mark_changed marks `slots` [count]. take_changed writes 1 (marked) or 0 for each slot to
// `changed` [slots], and clears the marks.
HOST_TABLES_API HostTablesStatus host_tables_mark_changed(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API void host_tables_take_changed(HostTables* tables, uint8_t* changed);

// Open a snapshot of the rows in `slots` [count]: it keeps them readable as they are now. Only one may be open. While
// it is, call host_tables_preserve before every change of a row; after HOST_TABLES_NO_MEMORY nothing has changed.
// host_tables_preserve takes at most host_tables_preserve_bytes from the system. host_tables_read_snapshot reads as
// host_tables_read does. It may run beside any other call except those that open or close a snapshot.
HOST_TABLES_API HostTablesStatus host_tables_open_snapshot(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API int64_t host_tables_preserve_bytes(const HostTables* tables, int64_t count);
HOST_TABLES_API HostTablesStatus host_tables_preserve(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API void host_tables_read_snapshot(const HostTables* tables, HostTablesTable table, int32_t array,
                                               const int32_t* slots, int64_t count, void* values,
                                               int32_t num_threads);
HOST_TABLES_API void host_tables_close_snapshot(HostTables* tables);

// Make the rows of the distinct `row_ids` [count], which have `slots`, untouched again. New rows will get their
// slots, so an open snapshot must have preserved them. After HOST_TABLES_NO_MEMORY nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_remove(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                                    int64_t count);

// Give the touched rows other ids. `row_ids` [touched rows], distinct and below `vocabulary_size`, are the new ids
// of the rows in `slots`, which come from host_tables_touched. After HOST_TABLES_NO_MEMORY nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_renumber(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                                      int64_t vocabulary_size);

// Enlarge the vocabulary to `vocabulary_size` ids.
HOST_TABLES_API HostTablesStatus host_tables_grow(HostTables* tables, int64_t vocabulary_size);

// Forget all touched rows, and return their memory to the system.
HOST_TABLES_API void host_tables_clear(HostTables* tables);

#if defined(__cplusplus)
}
#endif

#endif  // HOST_TABLES_H_
