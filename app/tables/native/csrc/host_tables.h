// The C interface of the native host tables. Python's side is app/tables/native/tables.py.
//
// Letters: B batch, C looked-up fields, D embedding width, V vocabulary size, U unique ids of a batch, n positions: one
// of each field, or, where fields may be lists, one of each value.
// Arrays are dense and row-major. Outputs must not overlap inputs or each other.
//
// Threads: one call at a time on a handle, but for host_tables_unique, which reads nothing that other
// calls change and may run beside any of them, and host_tables_read_snapshot. The results are the same bits for any
// number of threads and any instruction set.

#ifndef HOST_TABLES_H_
#define HOST_TABLES_H_

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define HOST_TABLES_API __attribute__((visibility("default")))

typedef enum {
  HOST_TABLES_OK = 0,
  HOST_TABLES_BAD_ID = 1,      // an id outside 0 ... V-1
  HOST_TABLES_NO_MEMORY = 2,   // the system gave no memory; the tables are as before
  HOST_TABLES_UNKNOWN_ISA = 3  // HOST_TABLES_ISA names no instruction set of this build and machine
} HostTablesStatus;

typedef enum { HOST_TABLES_WIDE = 0, HOST_TABLES_DEEP = 1 } HostTablesTable;

typedef enum {
  HOST_TABLES_LAZY_ADAM = 0,
  HOST_TABLES_ADAM = 1,  // of every row at every step; see StepHistory of app/tables/optimizers.py
  HOST_TABLES_ADAGRAD = 2,
  HOST_TABLES_ROWWISE_ADAGRAD = 3,
  HOST_TABLES_SGD = 4,
  HOST_TABLES_FTRL = 5,
  HOST_TABLES_SCHEDULED_FTRL = 6,  // its learning rate changes, so a row has that of its last step
  HOST_TABLES_PARTIAL_ROWWISE_ADAM = 7
} HostTablesOptimizer;

typedef struct HostTables HostTables;

typedef struct {
  int64_t vocabulary_size;
  int64_t embedding_dim;
  uint64_t seed;
  float initial_scale;  // an initial deep value is uniform in +-initial_scale
  int32_t num_threads;
  int32_t worth_threads;   // work on fewer rows or positions is one thread's: to wake others would take longer
  int32_t wide_optimizer;  // FTRL, SCHEDULED_FTRL, ADAGRAD or SGD; not read if the caller takes the steps by itself
  int32_t deep_optimizer;  // HostTablesOptimizer; not read if the caller takes the steps by itself
  // The arrays of TablesSpec.state_arrays() of app/tables/interface.py, in their order.
  int32_t wide_states;    // of the wide table, one value a row each
  int32_t deep_states;    // of the deep table, D values a row each; the row itself first
  int32_t deep_scalars;   // of the deep table, one value of 4 bytes a row each
  int32_t has_last_step;  // not 0 if the first of these is the row's last step
  int32_t keeps_means;    // not 0 if the last arrays are those of running means
  int32_t is_bfloat16;    // not 0 if the deep states are: else they are float32, as all others
  int32_t wide_initial_array, deep_initial_array;  // the one array but the row that does not begin as 0; -1 for none
  float wide_initial_value, deep_initial_value;
} HostTablesSpec;

// The unique ids of a batch as host_tables_unique makes them, and its lists as host_tables_find_lists does: null where
// no field is a list, so that position p is that of field p and counts once.
typedef struct {
  int64_t num_rows;          // B
  int64_t num_fields;        // C
  int64_t num_positions;     // n
  int64_t num_unique;        // U
  const int64_t* values;     // [U] in order of first position
  const int32_t* inverse;    // [n] the place in `values` of each position
  const int32_t* offsets;    // [U + 1] id u has the positions offsets[u] ... offsets[u + 1] - 1
  const int32_t* positions;  // [n] grouped by id, ascending within one
  const int32_t* first;      // [B * C + 1] field f has the positions first[f] ... first[f + 1] - 1
  const int32_t* places;     // [n] the field among B * C of each position
  const float* weights;      // [n] of a position's row in that of its field
} HostTablesBatch;

// One step of an optimizer; what it does not know is not read.
typedef struct {
  float learning_rate;  // Adam's has the bias corrections of this step in it
  float beta1, beta2, epsilon;
  float l1, l2;      // FTRL's own
  float l2_coef;     // l2_coef * row is added to the gradient of each unique row
  float row_clip_value;  // the gradient's values lie within +-row_clip_value before that; may be infinite
} HostTablesStep;

// With HOST_TABLES_ADAM: what rows need to catch up with steps 1 ... `step`; the arrays have that of step s at place s.
typedef struct {
  int64_t step;
  const float* rates;         // with both bias corrections
  const float* epsilons;
  const double* rate_sums;    // of the rates up to and with this one
  const float* beta2_powers;  // beta2 ** n at place n
  float beta1, beta2, l2_coef;
  int32_t most_exact_steps;
} HostTablesHistory;

// What the running means of rows need to know of steps 1 ... `step`; see RunningMean of app/tables/optimizers.py.
typedef struct {
  int64_t step;
  const double* powers;  // decay ** n at place n
  const float* rates;    // of the mean at each step
} HostTablesMeans;

// Rows with Adam's moments and, where `means` is not null, their running means, [count, width] each, as after their
// `last_steps` [count]; the means as before these.
typedef struct {
  int64_t count, width;
  float* rows;
  float* first_moments;
  float* second_moments;
  float* means;
  const int32_t* last_steps;
} HostTablesRowArrays;

// A new handle with no row touched, in *tables; HOST_TABLES_NO_MEMORY or HOST_TABLES_UNKNOWN_ISA.
HOST_TABLES_API HostTablesStatus host_tables_create(const HostTablesSpec* spec, HostTables** tables);
HOST_TABLES_API void host_tables_destroy(HostTables* tables);

// The instruction set that the kernels of this handle use: "avx512", "avx2" or "plain".
HOST_TABLES_API const char* host_tables_isa(const HostTables* tables);

// The values of a batch whose fields may be lists: `ids` [B, sum of `lengths`], int32 or int64 by `id_bytes`, -1 where a
// list has no value; not its first. `lengths` [C] and `means` [C], not 0 where a list's row is the mean of its values'.
// values, places and weights have room for all of `ids`. HOST_TABLES_BAD_ID: the outputs mean nothing.
HOST_TABLES_API HostTablesStatus host_tables_find_lists(const HostTables* tables, const void* ids, int32_t id_bytes,
                                                        int64_t num_rows, int64_t num_fields, const int32_t* lengths,
                                                        const int32_t* means, void* values, int32_t* first,
                                                        int32_t* places, float* weights, int64_t* num_values);

// Distinct ids of `ids` [count], int32 or int64 by `id_bytes`. values, inverse, positions have room for
// `count`, offsets for count + 1. HOST_TABLES_BAD_ID: the outputs mean nothing.
HOST_TABLES_API HostTablesStatus host_tables_unique(HostTables* tables, const void* ids, int32_t id_bytes,
                                                    int64_t count, int64_t* values, int32_t* inverse,
                                                    int32_t* offsets, int32_t* positions, int64_t* num_unique);

// slots [count] of `row_ids`, -1 where a row is untouched; returns how many are.
HOST_TABLES_API int64_t host_tables_find(const HostTables* tables, const int64_t* row_ids, int64_t count,
                                         int32_t* slots);

// Bytes that touching `num_new` more rows would take from the system; 0 where the slabs have room.
HOST_TABLES_API int64_t host_tables_growth_bytes(const HostTables* tables, int64_t num_new);

// Bytes that were taken from the system for rows and snapshots and not written to yet: the system counts them as free.
HOST_TABLES_API int64_t host_tables_uncommitted_bytes(const HostTables* tables);

// Gives each row of `row_ids` [count] (distinct) whose slot is -1 a slot, with its initial values; fills in
// `slots`. At most 2^31 - 2 rows may be touched in all. HOST_TABLES_NO_MEMORY: nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_touch(HostTables* tables, const int64_t* row_ids, int64_t count,
                                                   int32_t* slots);

// Rows of a batch: deep [B, C * D] and wide [B] (summed over positions in their order); of each unique id the
// wide_rows [U] and the squared_norms [U] of the deep rows. `slots` [U] as host_tables_find gives them. With
// HOST_TABLES_ADAM the rows are as after the last step of `history`; else it is null. `computed` takes rows that are not
// in memory as they are to be: with a history [U, 3 * D], the rows and moments of late and untouched rows; else with
// lists [U, D]; else it is not used. `rows` [U] takes where the deep rows are, with lists; else it is not used.
HOST_TABLES_API void host_tables_lookup(const HostTables* tables, const HostTablesBatch* batch,
                                        const int32_t* slots, const HostTablesHistory* history, float* deep,
                                        float* wide, float* wide_rows, double* squared_norms, float* computed,
                                        const float** rows);

// 1 if all of `values` [count] are finite, else 0.
HOST_TABLES_API int32_t host_tables_all_finite(const HostTables* tables, const float* values, int64_t count);

// One step of the wide rows' optimizer; `gradient` [B] counts for each position, its sums times `scale`. No slot may be
// -1.
HOST_TABLES_API void host_tables_update_wide(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                                             const float* gradient, float scale, const HostTablesStep* step);

// One step of the deep rows' optimizer; `gradient` [B, C * D], its sums times `scale`. No slot may be -1. With
// HOST_TABLES_ADAM it is step history->step + 1, and `caught_up` [U, 3 * D] is `computed` of a lookup of this batch with
// this history where `is_caught_up`; else it is filled. Without, `history` and `caught_up` are null. bfloat16
// states are rounded with `rounding_key`: see app/tables/rounding.py.
HOST_TABLES_API void host_tables_update_deep(HostTables* tables, const HostTablesBatch* batch, const int32_t* slots,
                                             const float* gradient, float scale, const HostTablesStep* step,
                                             const HostTablesHistory* history, float* caught_up,
                                             int32_t is_caught_up, uint64_t rounding_key);

// Takes the means of `row_ids` [count], in `slots`, up to `means->step`, the last step so far, to come before their
// update. With HOST_TABLES_ADAM the rows catch up with `history` too; else it is null. `rounding_key` as in
// host_tables_update_deep, of step `means->step`.
HOST_TABLES_API void host_tables_advance_means(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                               int64_t count, const HostTablesHistory* history,
                                               const HostTablesMeans* means, uint64_t rounding_key);

// The means after `means->step`, above 0, of `row_ids` [count], with their `slots` as host_tables_find gives them: deep
// [count, D] and wide [count]. With HOST_TABLES_ADAM `scratch` is [count, 3 * D]; else it is not used.
HOST_TABLES_API void host_tables_read_means(const HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                            int64_t count, const HostTablesHistory* history,
                                            const HostTablesMeans* means, float* scratch, float* deep, float* wide);

// Takes the steps of `history` that rows missed, in place and without tables; with `means` up to the same step, which is
// not null where the rows have means. HOST_TABLES_UNKNOWN_ISA: as of host_tables_create.
HOST_TABLES_API HostTablesStatus host_tables_catch_up(const HostTablesRowArrays* arrays,
                                                      const HostTablesHistory* history, const HostTablesMeans* means,
                                                      int32_t num_threads);

// A batch whose unique rows lie in another process. expand: deep_rows [U, D] and wide_rows [U] to deep [B, C * D] and
// wide [B] (summed over positions in their order). sum_by_id: gradients of deep and wide to deep_sums [U, D] and
// wide_sums [U], in order of position; null for the part that is not wanted. Of the tables only embedding_dim and
// num_threads are read.
HOST_TABLES_API void host_tables_expand(const HostTables* tables, const HostTablesBatch* batch, const float* deep_rows,
                                        const float* wide_rows, float* deep, float* wide);
HOST_TABLES_API void host_tables_sum_by_id(const HostTables* tables, const HostTablesBatch* batch, const float* deep,
                                           const float* wide, float* deep_sums, float* wide_sums);

// Touched rows: how many, and their ids, ascending, with their slots, which are below host_tables_num_slots.
HOST_TABLES_API int64_t host_tables_num_touched(const HostTables* tables);
HOST_TABLES_API int64_t host_tables_num_slots(const HostTables* tables);
HOST_TABLES_API HostTablesStatus host_tables_touched(const HostTables* tables, int64_t* row_ids, int32_t* slots);

// Copies one state array of the rows in `slots` [count] to `values` [count, width], the width being 1 (wide) or D
// (deep) but for the deep table's scalars. `array` is its place in the order of HostTablesSpec, the row itself 0.
HOST_TABLES_API void host_tables_read(const HostTables* tables, HostTablesTable table, int32_t array,
                                      const int32_t* slots, int64_t count, void* values);

// Writing rows into tables that were just created or cleared, array by array. host_tables_place is as host_tables_touch,
// but gives no values; host_tables_write copies the other way than host_tables_read, into placed rows, and returns 1, or
// 0 where a float is not finite: then the tables are to be cleared. host_tables_end_writing gives initial values to what
// was not written of a placed row, and comes before any other use; HOST_TABLES_NO_MEMORY: the tables are to be cleared.
// At any other time host_tables_write writes touched rows: a step that the caller took.
HOST_TABLES_API HostTablesStatus host_tables_place(HostTables* tables, const int64_t* row_ids, int64_t count,
                                                   int32_t* slots);
HOST_TABLES_API int32_t host_tables_write(HostTables* tables, HostTablesTable table, int32_t array,
                                          const int32_t* slots, int64_t count, const void* values);
HOST_TABLES_API HostTablesStatus host_tables_end_writing(HostTables* tables);

// Which rows were updated: marks `slots` [count]; gives 1 or 0 for each slot in `changed` [slots], and forgets.
HOST_TABLES_API HostTablesStatus host_tables_mark_changed(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API void host_tables_take_changed(HostTables* tables, uint8_t* changed);

// A snapshot of the rows in `slots` [count], one at a time. While it is open host_tables_preserve comes before every
// change of a state; HOST_TABLES_NO_MEMORY: nothing has changed. It asks for host_tables_preserve_bytes at most.
// host_tables_read_snapshot, like host_tables_read, may run beside any other call but those that open and close.
HOST_TABLES_API HostTablesStatus host_tables_open_snapshot(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API int64_t host_tables_preserve_bytes(const HostTables* tables, int64_t count);
HOST_TABLES_API HostTablesStatus host_tables_preserve(HostTables* tables, const int32_t* slots, int64_t count);
HOST_TABLES_API void host_tables_read_snapshot(const HostTables* tables, HostTablesTable table, int32_t array,
                                               const int32_t* slots, int64_t count, void* values,
                                               int32_t num_threads);
HOST_TABLES_API void host_tables_close_snapshot(HostTables* tables);

// Makes the rows of `row_ids` [count] (distinct), which have `slots`, untouched again. Their slots go to rows to come, so
// an open snapshot must have preserved them. HOST_TABLES_NO_MEMORY: nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_remove(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                                    int64_t count);

// Gives the touched rows other ids: `row_ids` [touched rows] (distinct), below `vocabulary_size`, are those of the rows in
// `slots`, as host_tables_touched gives them. HOST_TABLES_NO_MEMORY: nothing has changed.
HOST_TABLES_API HostTablesStatus host_tables_renumber(HostTables* tables, const int64_t* row_ids, const int32_t* slots,
                                                      int64_t vocabulary_size);

// Takes ids below `vocabulary_size`, which is more than before.
HOST_TABLES_API HostTablesStatus host_tables_grow(HostTables* tables, int64_t vocabulary_size);

// Forgets all touched rows and gives their memory back.
HOST_TABLES_API void host_tables_clear(HostTables* tables);

#if defined(__cplusplus)
}
#endif

#endif  // HOST_TABLES_H_
