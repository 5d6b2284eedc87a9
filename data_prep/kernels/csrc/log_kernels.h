// The C interface of the data preparation's native kernels, which data_prep/kernels/native.py calls. The comment of
// each kernel names the NumPy function that defines its results.
//
// Array sizes use these letters: n rows, L lines of a chunk, N numeric fields, C categorical fields, K values of a
// field. Arrays are dense and row-major. Outputs must not overlap inputs or each other. The machine must be
// little-endian.
//
// No kernel keeps state, so all of them may run concurrently in several threads.

#ifndef LOG_KERNELS_H_
#define LOG_KERNELS_H_

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define LOG_KERNELS_API __attribute__((visibility("default")))

// Reasons to reject a line, which are indices into log_format.REASONS. If several cells of a line are bad, the line
// gets the smallest of their reasons.
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

// Kinds of columns. data_prep/options/kinds.py has the same names.
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

// Relations in a rule for the label, which are indices into log_format.RELATIONS plus 1.
typedef enum {
  LOG_KERNELS_NO_RULE = 0,
  LOG_KERNELS_AT_LEAST = 1,
  LOG_KERNELS_AT_MOST = 2,
  LOG_KERNELS_EQUAL = 3,
  LOG_KERNELS_ABOVE = 4,
  LOG_KERNELS_BELOW = 5
} LogKernelsRelation;

// Meaning of label cells that are listed neither in `clicked` nor in `not_clicked`: the line is bad, the row is no
// click, or the row is a click.
typedef enum { LOG_KERNELS_NO_REST = 0, LOG_KERNELS_REST_NOT_CLICKED = 1, LOG_KERNELS_REST_CLICKED = 2 } LogKernelsRest;

// Forms of the times in a column: numbers since 1970 in a unit, ISO 8601, or a form with % codes, which
// options/kinds.py describes.
typedef enum {
  LOG_KERNELS_SECONDS = 0,
  LOG_KERNELS_MILLISECONDS = 1,
  LOG_KERNELS_MICROSECONDS = 2,
  LOG_KERNELS_NANOSECONDS = 3,
  LOG_KERNELS_ISO = 4,
  LOG_KERNELS_CODES = 5
} LogKernelsTimes;

// Number that is stored as the label of a row without a label, in a log whose labels are optional.
#define LOG_KERNELS_UNLABELLED 2

// An array of strings, which are slices of `data`. There are at least seven more bytes after the end of every string.
typedef struct {
  const uint8_t* data;
  const int64_t* starts;   // [count] offset of each string in `data`
  const int64_t* lengths;  // [count] length of each string in bytes
  int64_t count;
} LogKernelsStrings;

// The format of lines, which corresponds to log_format.LogFormat.
typedef struct {
  uint8_t separator;
  uint8_t quotes;            // 1 if cells may be in quotes, else 0
  int64_t num_columns;       // at least 2
  const uint8_t* kinds;      // [num_columns] LogKernelsKind of each column
  const int64_t* slots;      // [num_columns] index of each column in the output array of its kind
  // [num_columns] number of adjacent columns, from this column on, that have the same kind and adjacent slots
  const int64_t* alike;
  LogKernelsStrings missing;   // cells that mean a missing value, besides the empty cell
  LogKernelsStrings clicked;   // cells of the label that mean a click
  LogKernelsStrings not_clicked;  // cells of the label that mean no click
  uint8_t relation;          // LogKernelsRelation between a label and `bound` that makes a click, or NO_RULE
  uint8_t label_is_optional; // 1 if a row may lack the label, else 0
  uint8_t rest;              // LogKernelsRest: the meaning of all other cells of the label that are not missing
  uint8_t trim;              // 1 if blanks around cells are removed, else 0
  uint8_t decimal_comma;     // 1 if a comma may be the decimal point of a number, else 0
  double bound;
  const uint8_t* time_kinds;     // [S] LogKernelsTimes of each column of times
  LogKernelsStrings time_forms;  // [S] form of each column of times, used if it has % codes
  // Offsets of the columns' time zones, as in times.ZoneTable. Those of column s have the indices zone_firsts[s] to
  // zone_firsts[s + 1] - 1, and the first offset of a column starts at the smallest int64.
  const int64_t* zone_firsts;   // [S + 1] index of the first offset of each column
  const int64_t* zone_starts;   // start of each offset by the zone's own clock, in milliseconds since 1970
  const int64_t* zone_offsets;  // milliseconds by which the clock is ahead of UTC
} LogKernelsFormat;

// Output arrays for the cells of good lines. Each column has room for `capacity` >= L rows, and the first n are filled.
// There are N integer columns, H hex columns, F float columns, S time columns, and T string columns (text, then ids).
typedef struct {
  int64_t capacity;
  int64_t* line_numbers;      // [capacity] number of each row's line within the chunk, from 0
  uint8_t* labels;            // [capacity] 0, 1 or LOG_KERNELS_UNLABELLED
  int64_t* integers;          // [N, capacity] 0 where missing
  uint8_t* integers_present;  // [N, capacity] 0 or 1
  uint32_t* values;           // [H, capacity] 0 where missing
  uint8_t* values_present;    // [H, capacity] 0 or 1
  double* floats;             // [F, capacity] 0 where missing
  uint8_t* floats_present;    // [F, capacity] 0 or 1
  int64_t* times;             // [S, capacity] milliseconds since 1970, 0 where missing
  uint8_t* times_present;     // [S, capacity] 0 or 1
  int64_t* string_starts;     // [T, capacity] offset of each string in the text
  int64_t* string_lengths;    // [T, capacity] 0 where missing
  float* weights;             // [capacity] only written if there is a column of weights
} LogKernelsRows;

// Output arrays for rejected lines. Each array has room for L elements.
typedef struct {
  int64_t* line_numbers;  // number of the line within the chunk, from 0
  int64_t* starts;        // offset of the line's first byte
  int64_t* ends;          // offset after the line's last byte, without '\n'
  int8_t* reasons;        // LogKernelsReason
} LogKernelsRejects;

// The vocabulary of a categorical field. `words` are the numbers value << 32 | (id - base_id) in ascending order. The
// values whose upper bits value >> shift equal b are in words[starts[b]] to words[starts[b + 1] - 1].
typedef struct {
  const uint64_t* words;   // [K]
  const uint32_t* starts;  // [(2^32 >> shift) + 1]
  int32_t shift;           // 1 to 32
  int64_t base_id;
  int64_t missing_id;
  int64_t first_oov_id;
  int64_t num_oov_ids;  // 1 to 2^32 - 1; the hash of a value that is not in `words` selects one of these ids
} LogKernelsVocabulary;

// Parses lines, as parse.parse_chunk does. Good lines of `text` [num_bytes], which ends in '\n', become rows, and other
// lines become rejects. With format.quotes, lines that have quotes are rewritten in place, so that all cells are
// contiguous in the text. A line of more than `max_line_bytes` is rejected as too long. Returns n and sets *num_rejects
// to L - n. If L exceeds the capacity, it returns -1, sets *num_rejects to 0 and leaves the other outputs undefined.
LOG_KERNELS_API int64_t log_kernels_parse(uint8_t* text, int64_t num_bytes, int64_t max_line_bytes,
                                          const LogKernelsFormat* format, const LogKernelsRows* rows,
                                          const LogKernelsRejects* rejects, int64_t* num_rejects);

// Parses cells [n] as vectors of `width` numbers, as parse.parse_vectors does. Writes the vectors to `values` [n,
// width], zeros for a missing or bad cell, and 1 to `present` [n] and `good` [n] for the cells that are not missing, and
// for the good ones. With `decimal_comma`, a comma is the decimal point of a number and separates no numbers.
LOG_KERNELS_API void log_kernels_parse_vectors(const LogKernelsStrings* cells, int64_t width, uint8_t decimal_comma,
                                               float* values, uint8_t* present, uint8_t* good);

// Counts distinct values, as numpy_kernels.count_values does. Only values [num_rows] that are `chosen` and `present`
// count. Writes the numbers value << 32 | count to `words` in ascending order and returns how many there are. `scratch`
// has room for 2 * num_rows elements, and `words` for num_rows.
LOG_KERNELS_API int64_t log_kernels_count(const uint32_t* values, const uint8_t* present, const uint8_t* chosen,
                                          int64_t num_rows, uint32_t* scratch, uint64_t* words);

// Writes a histogram to `counts` [1011], as numpy_kernels.count_bins does. Only integers [num_rows] that are `present`
// and `chosen` count.
LOG_KERNELS_API void log_kernels_bins(const int64_t* integers, const uint8_t* present, const uint8_t* chosen,
                                      int64_t num_rows, int64_t* counts);

// Looks up values, as numpy_kernels.encode_values does. `values` and `present` are [num_fields, num_rows]. Writes their
// ids [num_rows, num_fields], which are int32 if `id_bytes` is 4 and int64 otherwise.
LOG_KERNELS_API void log_kernels_encode(const LogKernelsVocabulary* fields, int64_t num_fields,
                                        const uint32_t* values, const uint8_t* present, int64_t num_rows,
                                        int32_t id_bytes, void* ids);

// Counts distinct strings, as numpy_kernels.count_strings does, but in no particular order. Writes the key, the count
// and the first row of each distinct string among n strings, and returns how many there are. `table` has room for
// table_size elements, which is a power of two above n; n is at most 2^30. Keys are 64-bit hashes as in
// strings.Strings.keys, masked with `key_mask`. The mask has all bits, or fewer in tests, so that keys collide.
// `secret` [2] are random numbers that an author of logs cannot know. No output depends on them.
LOG_KERNELS_API int64_t log_kernels_count_strings(const LogKernelsStrings* texts, const uint64_t* secret,
                                                uint64_t key_mask, int32_t* table, int64_t table_size,
                                                uint64_t* keys, int64_t* counts, int64_t* firsts);

// Splits cells [n] into their values, as strings.split_lists does, and returns the number of values of all cells. Of
// each cell the first `max_length` values are kept, without the blanks around them if `trim` is 1. Writes the start (as
// an offset in the cells' data) and the length of each value, the number of values of each cell to `lengths` [n], and 1
// to `cut` [n] if a cell has further values. `starts` and `value_lengths` have room for min(max_length, (length of the
// cell + 1) / 2) values of each cell.
LOG_KERNELS_API int64_t log_kernels_split_lists(const LogKernelsStrings* cells, uint8_t separator, int64_t max_length,
                                                uint8_t trim, int64_t* starts, int64_t* value_lengths,
                                                int64_t* lengths, uint8_t* cut);

// Joins the strings of all parts [num_parts] in each row [n] with *, as numpy_kernels.join_strings does, and escapes
// special characters. Writes the joined strings to `data` and their positions to `starts` and `lengths`, and returns
// the number of bytes written. `data` has room for twice the bytes of all strings and num_parts * n more.
LOG_KERNELS_API int64_t log_kernels_join_strings(const LogKernelsStrings* parts, int64_t num_parts,
                                               const uint8_t* present, uint8_t* data, int64_t* starts,
                                               int64_t* lengths);

// Looks up the ids [n] of strings [n], as numpy_kernels.find_strings does. The strings of the vocabulary are sorted by
// key, and strings that share a key are sorted by their bytes.
LOG_KERNELS_API void log_kernels_find_strings(const LogKernelsStrings* texts, const uint8_t* present,
                                            const LogKernelsStrings* vocabulary, const uint64_t* keys,
                                            const int64_t* known_ids, int64_t missing_id, int64_t first_oov_id,
                                            int64_t num_oov_ids, int64_t* ids);

// Looks up the counts of keys [num_keys] in a sketch (an approximate counter) [num_halves, depth, width], as
// numpy_kernels.sketch_counts does. `depth` is at most 16.
LOG_KERNELS_API void log_kernels_sketch_counts(const uint32_t* halves, int64_t num_halves, int64_t depth,
                                               int64_t width, const uint64_t* keys, int64_t num_keys, int64_t* counts);

// Adds the counts [num_keys] of keys to a half [depth, width] of a sketch, as numpy_kernels.add_to_sketch does. `sums`
// has room for num_keys elements.
LOG_KERNELS_API void log_kernels_sketch_add(uint32_t* half, int64_t depth, int64_t width, const uint64_t* keys,
                                            const int64_t* counts, int64_t num_keys, uint32_t* sums);

#if defined(__cplusplus)
}
#endif

#endif  // LOG_KERNELS_H_
