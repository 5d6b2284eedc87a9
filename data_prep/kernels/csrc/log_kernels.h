// The C interface of the data preparation's native kernels. Python's side is data_prep/kernels/native.py; each kernel
// returns the same as the NumPy function that its comment names, which is its definition.
//
// Letters: n rows, L lines of a chunk, N numeric fields, C categorical fields, K values of a field.
// Arrays are dense and row-major. Outputs must not overlap inputs or each other. Little-endian machines only.
//
// Threads: no kernel keeps state, so all of them may run concurrently.

#ifndef LOG_KERNELS_H_
#define LOG_KERNELS_H_

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define LOG_KERNELS_API __attribute__((visibility("default")))

// Reasons to reject a line: the indices of log_format.REASONS. If several apply, the smallest from LABEL on wins.
typedef enum {
  LOG_KERNELS_KEPT = 0,
  LOG_KERNELS_TOO_LONG = 1,
  LOG_KERNELS_COLUMNS = 2,
  LOG_KERNELS_LABEL = 3,
  LOG_KERNELS_INTEGER = 4,
  LOG_KERNELS_CATEGORICAL = 5,
  LOG_KERNELS_QUOTES = 6,
  LOG_KERNELS_WEIGHT = 7,
  LOG_KERNELS_FLOAT = 8,
  LOG_KERNELS_TIMESTAMP = 9
} LogKernelsReason;

// Kinds of columns, by their names in data_prep/options/kinds.py.
typedef enum {
  LOG_KERNELS_IGNORED_COLUMN = 0,
  LOG_KERNELS_LABEL_COLUMN = 1,
  LOG_KERNELS_INTEGER_COLUMN = 2,
  LOG_KERNELS_HEX32_COLUMN = 3,
  LOG_KERNELS_STRING_COLUMN = 4,
  LOG_KERNELS_ID_COLUMN = 5,
  LOG_KERNELS_WEIGHT_COLUMN = 6,
  LOG_KERNELS_FLOAT_COLUMN = 7,
  LOG_KERNELS_TIMESTAMP_COLUMN = 8,
  LOG_KERNELS_BOOLEAN_COLUMN = 9
} LogKernelsKind;

// Relations of a rule for the label: the indices of log_format.RELATIONS, from 1.
typedef enum {
  LOG_KERNELS_NO_RULE = 0,
  LOG_KERNELS_AT_LEAST = 1,
  LOG_KERNELS_AT_MOST = 2,
  LOG_KERNELS_EQUAL = 3,
  LOG_KERNELS_ABOVE = 4,
  LOG_KERNELS_BELOW = 5
} LogKernelsRelation;

typedef enum { LOG_KERNELS_NO_REST = 0, LOG_KERNELS_REST_NOT_CLICKED = 1, LOG_KERNELS_REST_CLICKED = 2 } LogKernelsRest;

// How a column of times is written: numbers since 1970 in a unit, ISO 8601, or a form with % codes. See
// options/time_forms.py.
typedef enum {
  LOG_KERNELS_SECONDS = 0,
  LOG_KERNELS_MILLISECONDS = 1,
  LOG_KERNELS_MICROSECONDS = 2,
  LOG_KERNELS_NANOSECONDS = 3,
  LOG_KERNELS_ISO = 4,
  LOG_KERNELS_CODES = 5
} LogKernelsTimes;

// A label that is not given, though it may be left out.
#define LOG_KERNELS_UNLABELLED 2

// Strings by their positions in `data`, which has at least seven more bytes after the last of them.
typedef struct {
  const uint8_t* data;
  const int64_t* starts;   // [count]
  const int64_t* lengths;  // [count]
  int64_t count;
} LogKernelsStrings;

// How a line is written; see log_format.LogFormat.
typedef struct {
  uint8_t separator;
  uint8_t quotes;            // 0 or 1
  int64_t num_columns;       // >= 2
  const uint8_t* kinds;      // [num_columns] LogKernelsKind
  const int64_t* slots;      // [num_columns] index among the columns that are stored together
  const int64_t* alike;      // [num_columns] columns of the same kind from this one on, in adjacent slots
  LogKernelsStrings missing;   // cells that are missing, besides empty ones
  LogKernelsStrings clicked;   // cells of the label
  LogKernelsStrings not_clicked;
  uint8_t relation;          // LogKernelsRelation of a label's number to `bound`, if labels are given by a rule
  uint8_t label_is_optional; // 0 or 1
  uint8_t rest;              // LogKernelsRest: what any other cell of the label that is not missing counts as
  uint8_t trim;              // 0 or 1: blanks around cells are no part of them
  uint8_t decimal_comma;     // 0 or 1: a comma in a decimal number is a point
  double bound;
  const uint8_t* time_kinds;     // [S] LogKernelsTimes of each column of times
  LogKernelsStrings time_forms;  // [S] the forms with % codes
  // The clocks of the columns' time zones, as in times.ZoneTable: that of column s is at zone_firsts[s] to
  // zone_firsts[s + 1] - 1, and its first start is the smallest int64.
  const int64_t* zone_firsts;   // [S + 1]
  const int64_t* zone_starts;   // by the clock itself, in milliseconds since 1970
  const int64_t* zone_offsets;  // milliseconds ahead of UTC
} LogKernelsFormat;

// Cells as columns of `capacity` >= L rows each, of which the first n are filled. N integer columns, H hex ones, F
// floats, S times, T strings (text, then ids).
typedef struct {
  int64_t capacity;
  int64_t* line_numbers;      // [capacity] within the chunk, from 0
  uint8_t* labels;            // [capacity] 0, 1 or LOG_KERNELS_UNLABELLED
  int64_t* integers;          // [N, capacity] 0 where missing
  uint8_t* integers_present;  // [N, capacity] 0 or 1
  uint32_t* values;           // [H, capacity] 0 where missing
  uint8_t* values_present;    // [H, capacity] 0 or 1
  double* floats;             // [F, capacity] 0 where missing
  uint8_t* floats_present;    // [F, capacity] 0 or 1
  int64_t* times;             // [S, capacity] milliseconds since 1970, 0 where missing
  uint8_t* times_present;     // [S, capacity] 0 or 1
  int64_t* string_starts;     // [T, capacity] offsets in the text
  int64_t* string_lengths;    // [T, capacity] 0 where missing
  float* weights;             // [capacity] if there is a column of them
} LogKernelsRows;

// Rejected lines; each array has room for L.
typedef struct {
  int64_t* line_numbers;  // within the chunk, from 0
  int64_t* starts;        // offset of its first byte
  int64_t* ends;          // one past its last byte, without '\n'
  int8_t* reasons;
} LogKernelsRejects;

// One categorical field's vocabulary. `words` are value << 32 | (id - base_id), ascending. Those whose value's
// upper bits are b, value >> shift, are words[starts[b]] ... words[starts[b + 1] - 1].
typedef struct {
  const uint64_t* words;   // [K]
  const uint32_t* starts;  // [(2^32 >> shift) + 1]
  int32_t shift;           // 1 ... 32
  int64_t base_id;
  int64_t missing_id;
  int64_t first_oov_id;
  int64_t num_oov_ids;  // 1 ... 2^32 - 1; a value that is not in `words` has one of them by its hash
} LogKernelsVocabulary;

// parse.parse_chunk: turns good lines of `text` [num_bytes], which ends in '\n', into rows, the others into rejects.
// With format.quotes, lines that have quotes are rewritten in place, so that all cells are contiguous in the text.
// Returns n; *num_rejects is L - n. Returns -1 and sets it to 0 if L exceeds the capacity; the other outputs are then
// undefined. A line of more than `max_line_bytes` is too long.
LOG_KERNELS_API int64_t log_kernels_parse(uint8_t* text, int64_t num_bytes, int64_t max_line_bytes,
                                          const LogKernelsFormat* format, const LogKernelsRows* rows,
                                          const LogKernelsRejects* rejects, int64_t* num_rejects);

// counting.count_values: writes to `words` the distinct values among those [num_rows] that are `chosen` and `present`,
// ascending, as value << 32 | count, and returns their number. `scratch` has room for 2 * num_rows, `words` for
// num_rows.
LOG_KERNELS_API int64_t log_kernels_count(const uint32_t* values, const uint8_t* present, const uint8_t* chosen,
                                          int64_t num_rows, uint32_t* scratch, uint64_t* words);

// counting.count_bins: writes to `counts` [1011] the number of integers [num_rows] in each bin, of those that are
// `present` and `chosen`.
LOG_KERNELS_API void log_kernels_bins(const int64_t* integers, const uint8_t* present, const uint8_t* chosen,
                                      int64_t num_rows, int64_t* counts);

// numpy_kernels.encode_values: writes the ids [num_rows, num_fields], int32 or int64 by `id_bytes`, of values and present
// [num_fields, num_rows].
LOG_KERNELS_API void log_kernels_encode(const LogKernelsVocabulary* fields, int64_t num_fields,
                                        const uint32_t* values, const uint8_t* present, int64_t num_rows,
                                        int32_t id_bytes, void* ids);

// counting.count_strings, but not in order: writes keys, counts and first rows of the distinct strings among n strings,
// and returns their number. `table` has room for table_size, a power of two above n; n is at most 2^30. Keys are those
// bits of strings.Strings.keys that `key_mask` has (all; fewer in tests, so that keys collide). `secret` [2] are random
// numbers that nobody who writes a log knows; no output depends on them.
LOG_KERNELS_API int64_t log_kernels_count_strings(const LogKernelsStrings* texts, const uint64_t* secret,
                                                uint64_t key_mask, int32_t* table, int64_t table_size,
                                                uint64_t* keys, int64_t* counts, int64_t* firsts);

// lists.split_lists: writes the positions of the first `max_length` values of each cell [n], as offsets in their data,
// without blanks around them if `trim`, the number of values of each cell, up to max_length, and whether it has more; returns the number of all that are written.
// `starts` and `value_lengths` have room for min(max_length, (length of the cell + 1) / 2) values of each.
LOG_KERNELS_API int64_t log_kernels_split_lists(const LogKernelsStrings* cells, uint8_t separator, int64_t max_length,
                                                uint8_t trim, int64_t* starts, int64_t* value_lengths,
                                                int64_t* lengths, uint8_t* cut);

// numpy_kernels.join_strings: writes the strings [n] of all parts [num_parts], * between them and escaped, to `data`, which
// has room for twice their bytes and num_parts * n more, and their positions; returns the number of bytes written.
LOG_KERNELS_API int64_t log_kernels_join_strings(const LogKernelsStrings* parts, int64_t num_parts,
                                               const uint8_t* present, uint8_t* data, int64_t* starts,
                                               int64_t* lengths);

// numpy_kernels.find_strings: writes the ids [n] of strings [n]. The vocabulary's strings are sorted by key, those that share
// a key by their bytes.
LOG_KERNELS_API void log_kernels_find_strings(const LogKernelsStrings* texts, const uint8_t* present,
                                            const LogKernelsStrings* vocabulary, const uint64_t* keys,
                                            const int64_t* known_ids, int64_t missing_id, int64_t first_oov_id,
                                            int64_t num_oov_ids, int64_t* ids);

// counting.sketch_counts: writes the counts [num_keys] of keys in the halves [num_halves, depth, width] of a sketch;
// `depth` is at most 16.
LOG_KERNELS_API void log_kernels_sketch_counts(const uint32_t* halves, int64_t num_halves, int64_t depth,
                                               int64_t width, const uint64_t* keys, int64_t num_keys, int64_t* counts);

// counting.add_to_sketch: adds counts [num_keys] of keys to a half [depth, width]. `sums` has room for num_keys.
LOG_KERNELS_API void log_kernels_sketch_add(uint32_t* half, int64_t depth, int64_t width, const uint64_t* keys,
                                            const int64_t* counts, int64_t num_keys, uint32_t* sums);

#if defined(__cplusplus)
}
#endif

#endif  // LOG_KERNELS_H_
