// Parses lines into columns according to the description of a log's format. A good line without quotes is read once,
// cell by cell. Any other line is split into cells first, to find the reason to reject it.
//
// The text ends in '\n', so no search for the end of a cell needs a bound; no separator is '\n', '\r', '"' or '-'.

#include <algorithm>
#include <cctype>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "log_kernels.h"

namespace {

constexpr std::uint8_t kBareSeparator = 0x1F;  // rows.BARE_SEPARATOR
constexpr int kHexDigits = 8;
constexpr int kIntegerDigits = 19;  // of the largest int64; any 19 digits fit in uint64
constexpr int kWordBytes = 8;
constexpr int kExponentDigits = 4;
// The largest numbers, and powers of 10, up to which a product or a quotient of both is rounded once.
constexpr std::uint64_t kExactMantissa = std::uint64_t{1} << 53;
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kLargestPower = 22;

constexpr std::uint64_t bytes_of(std::uint8_t byte) { return byte * std::uint64_t{0x0101010101010101}; }

inline std::uint64_t load_word(const std::uint8_t* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Returns a word whose lowest set bit is the high bit of the first byte of `word` that is 0; 0 if none is.
inline std::uint64_t zero_byte(std::uint64_t word) { return (word - bytes_of(0x01)) & ~word & bytes_of(0x80); }

struct Cell {
  const std::uint8_t* start;
  const std::uint8_t* end;
  std::int64_t size() const { return end - start; }
};

// Parses eight lower-case hex digits, all in one word; see parse._parse_hex.
inline bool parse_hex(const std::uint8_t* cell, std::uint32_t* value) {
  const std::uint64_t word = load_word(cell);
  const std::uint64_t is_letter = word >> 6 & bytes_of(0x01);
  const std::uint64_t low = word ^ (bytes_of(0x30) + is_letter * 0x30);
  const std::uint64_t digits = low + is_letter * 9;
  const std::uint64_t is_zero_letter = is_letter & ~(low | low >> 1 | low >> 2);
  const std::uint64_t above_9 = ((low + bytes_of(0x76)) | low) & bytes_of(0x80);
  const std::uint64_t pairs = (digits << 4 | digits >> 8) & 0x00FF00FF00FF00FF;
  const std::uint64_t quads = (pairs << 8 | pairs >> 16) & 0x0000FFFF0000FFFF;
  *value = static_cast<std::uint32_t>(quads << 16 | quads >> 32);
  return (above_9 | (digits & bytes_of(0xF0)) | is_zero_letter) == 0;
}

// Parses -?[0-9]{1,19} within int64, from *at to `end` at most; moves *at past it.
inline bool parse_integer(const std::uint8_t** at, const std::uint8_t* end, std::int64_t* integer) {
  const std::uint8_t* next = *at;
  const bool negative = next < end && *next == '-';
  next += negative;
  const std::uint8_t* const first_digit = next;
  std::uint64_t magnitude = 0;
  for (unsigned digit; next < end && (digit = *next - unsigned{'0'}) <= 9; ++next) magnitude = magnitude * 10 + digit;
  const std::int64_t num_digits = next - first_digit;
  *at = next;
  *integer = static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
  return num_digits >= 1 && num_digits <= kIntegerDigits && magnitude <= (std::uint64_t{1} << 63) - !negative;
}

// Returns eight bytes of the text; after its end they are line ends.
inline std::uint64_t word_at(const std::uint8_t* at, const std::uint8_t* text_end) {
  if (text_end - at >= kWordBytes) return load_word(at);
  std::uint64_t word = bytes_of('\n');
  std::memcpy(&word, at, text_end - at);
  return word;
}

// Parses [-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})? in float32's range, rounded correctly; what is too small
// for a normal double is 0. `point` may stand for the point. See parse._parse_floats.
bool parse_float(Cell cell, std::uint8_t point, double* number) {
  const std::uint8_t *at = cell.start, *const end = cell.end;
  const bool negative = at < end && *at == '-';
  at += at < end && (*at == '-' || *at == '+');
  const std::uint8_t* const start = at;
  std::uint64_t mantissa = 0;
  std::int64_t num_digits = 0, num_significant = 0, power = 0;  // the number is mantissa * 10^power, up to 19 digits
  bool has_point = false;
  for (; at < end; ++at) {
    const unsigned digit = *at - unsigned{'0'};
    if ((*at == '.' || *at == point) && !has_point) {
      has_point = true;
      continue;
    }
    if (digit > 9) break;
    ++num_digits;
    num_significant += num_significant != 0 || digit != 0;
    if (num_significant <= kIntegerDigits) mantissa = mantissa * 10 + digit;
    power -= has_point;
  }
  if (num_digits == 0) return false;
  if (at < end && (*at | 0x20) == 'e') {
    ++at;
    const bool is_negative_power = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    const std::uint8_t* const first_digit = at;
    std::int64_t exponent = 0;
    for (unsigned digit; at < end && (digit = *at - unsigned{'0'}) <= 9 && at - first_digit < kExponentDigits; ++at) {
      exponent = exponent * 10 + digit;
    }
    if (at == first_digit) return false;
    power += is_negative_power ? -exponent : exponent;
  }
  if (at != end) return false;
  double value = 0;
  if (num_significant <= kIntegerDigits && mantissa <= kExactMantissa && std::abs(power) <= kLargestPower) {
    const auto whole = static_cast<double>(mantissa);
    value = power < 0 ? whole / kPowers[-power] : whole * kPowers[power];
  } else if (num_significant != 0) {
    std::string text(start, end);
    std::replace(text.begin(), text.end(), static_cast<char>(point), '.');
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec == std::errc::result_out_of_range) {
      if (num_significant + power > 0) return false;
      value = 0;
    }
  }
  if (!std::isfinite(static_cast<float>(value))) return false;
  if (value < DBL_MIN) value = 0;
  *number = negative && value != 0 ? -value : value;
  return true;
}

constexpr std::int64_t kFirstTime = -62135596800000, kLastTime = 253402300799999;  // ms of the years 1 to 9999
constexpr std::int64_t kFirstLikelySecond = 600000000, kLastLikelySecond = 4099999999;  // log_format.LIKELY_SECONDS

// Days from 1970-01-01 to a date of the Gregorian calendar (H. Hinnant, "chrono-compatible low-level date algorithms").
std::int64_t days_from_civil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2;
  const std::int64_t era = year / 400, year_of_era = year % 400;
  const std::int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

std::int64_t days_of_month(std::int64_t year, std::int64_t month) {
  if (month == 2) return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
  return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

inline bool is_digit(std::uint8_t byte) { return byte - unsigned{'0'} <= 9; }

// True if a digit may stand beside the code at form[i], which is after its %; see log_format.time_pattern.
bool is_beside_digits(const std::uint8_t* form, std::int64_t form_size, std::int64_t i) {
  const bool before = i >= 2 && (is_digit(form[i - 2]) || (i >= 3 && form[i - 3] == '%' && form[i - 2] != 'p'));
  if (before || i + 1 == form_size) return before;
  return is_digit(form[i + 1]) || (form[i + 1] == '%' && form[i + 2] != 'p');
}

// Parses a time by a form with % codes; see parse._parse_times.
bool parse_time(Cell cell, const std::uint8_t* form, std::int64_t form_size, std::int64_t* time) {
  constexpr int kFractionDigits = 9, kMillisecondDigits = 3;
  std::int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, millisecond = 0, hours_of_half = -1;
  const std::uint8_t* at = cell.start;
  for (std::int64_t i = 0; i < form_size; ++i) {
    if (form[i] != '%') {
      if (at == cell.end || *at++ != form[i]) return false;
      continue;
    }
    const std::uint8_t code = form[++i];
    if (code == 'p') {
      if (cell.end - at < 2 || (at[1] | 0x20) != 'm') return false;
      const std::uint8_t half = *at | 0x20;
      if (half != 'a' && half != 'p') return false;
      hours_of_half = half == 'p' ? 12 : 0;
      at += 2;
      continue;
    }
    const int most = code == 'Y' ? 4 : code == 'f' ? kFractionDigits : 2;
    const int least = code == 'f' || (most == 2 && code != 'y' && !is_beside_digits(form, form_size, i)) ? 1 : most;
    std::int64_t number = 0;
    int num_digits = 0;
    for (; num_digits < most && at < cell.end && is_digit(*at); ++num_digits, ++at) {
      if (code != 'f' || num_digits < kMillisecondDigits) number = number * 10 + (*at - '0');
    }
    if (num_digits < least) return false;
    switch (code) {
      case 'Y':
        year = number;
        break;
      case 'y':
        year = number + (number >= 69 ? 1900 : 2000);
        break;
      case 'm':
        month = number;
        break;
      case 'd':
        day = number;
        break;
      case 'H':
        hour = number;
        break;
      case 'I':
        if (number < 1 || number > 12) return false;
        hour = number % 12;
        break;
      case 'M':
        minute = number;
        break;
      case 'S':
        second = number;
        break;
      default:
        for (millisecond = number; num_digits < kMillisecondDigits; ++num_digits) millisecond *= 10;
    }
  }
  if (hours_of_half > 0) hour += hours_of_half;
  if (at != cell.end || year < 1 || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month) ||
      hour > 23 || minute > 59 || second > 59) {
    return false;
  }
  *time = (((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millisecond;
  return true;
}

// True for UTF-8 as Python decodes it: no surrogates, no longer form than needed, at most U+10FFFF.
bool is_utf8(Cell cell) {
  for (const std::uint8_t* at = cell.start; at < cell.end;) {
    for (; cell.end - at >= kWordBytes && (load_word(at) & bytes_of(0x80)) == 0;) at += kWordBytes;
    if (at == cell.end) break;
    const std::uint8_t first = *at++;
    if (first < 0x80) continue;
    if (first < 0xC2 || first > 0xF4) return false;
    const int num_more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (cell.end - at < num_more) return false;
    const std::uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (*at < lowest || *at > highest) return false;
    for (int more = 1; more < num_more; ++more) {
      if ((at[more] & 0xC0) != 0x80) return false;
    }
    at += num_more;
  }
  return true;
}

// Parses a word for true (1) or false (0), in any case; see log_format.BOOLEANS.
bool parse_boolean(Cell cell, std::uint32_t* value) {
  static constexpr const char* kWords[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"f", "t"},
                                              {"n", "y"},        {"0", "1"},    {"0.0", "1.0"}};
  char word[5];
  if (cell.size() > static_cast<std::int64_t>(sizeof word)) return false;
  for (std::int64_t byte = 0; byte < cell.size(); ++byte) {
    const std::uint8_t letter = cell.start[byte];
    word[byte] = static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter);
  }
  const std::string_view lower(word, cell.size());
  for (const auto& pair : kWords) {
    for (std::uint32_t which = 0; which < 2; ++which) {
      *value = which;
      if (lower == pair[which]) return true;
    }
  }
  return false;
}

inline bool is_one_of(Cell cell, const LogKernelsStrings& words) {
  for (std::int64_t word = 0; word < words.count; ++word) {
    if (words.lengths[word] == cell.size() && !std::memcmp(words.data + words.starts[word], cell.start, cell.size())) {
      return true;
    }
  }
  return false;
}

// Removes the quotes of RFC 4180 from a line, in place, and puts kBareSeparator between its cells. Returns its new end,
// or null if quotes do not match: a cell that begins with a quote must end with one. See parse.quoted_cells.
std::uint8_t* unquote(std::uint8_t* line, std::uint8_t* end, std::uint8_t separator, bool trim) {
  if (std::memchr(line, '\r', end - line) != nullptr) return nullptr;
  std::uint8_t* out = line;
  for (const std::uint8_t* at = line;;) {
    while (trim && at < end && *at == ' ') ++at;
    if (at < end && *at == '"') {
      for (++at;; ++at) {
        if (at == end) return nullptr;
        if (*at == '"') {
          if (at + 1 == end || at[1] != '"') break;
          ++at;
        }
        *out++ = *at;
      }
      ++at;
      while (trim && at < end && *at == ' ') ++at;
      if (at < end && *at != separator) return nullptr;
    } else {
      while (at < end && *at != separator) *out++ = *at++;
    }
    if (at == end) return out;
    *out++ = kBareSeparator;
    ++at;
  }
}

// Parses lines into rows of the columns.
class LineParser {
 public:
  LineParser(const std::uint8_t* text, const std::uint8_t* text_end, const LogKernelsFormat& format,
             const LogKernelsRows& rows)
      : text_(text), text_end_(text_end), format_(format), rows_(rows) {
    // No number may contain the separator, and a line with quotes has the bare one nowhere.
    can_be_read_at_once_ = !std::isalnum(format.separator) &&
                           !(format.quotes && std::memchr(text, kBareSeparator, text_end - text) != nullptr);
    for (std::int64_t word = 0; word < format.missing.count; ++word) {
      missing_lengths_ |= length_bit(format.missing.lengths[word]);
    }
    std::memset(label_of_byte_, LOG_KERNELS_UNLABELLED, sizeof label_of_byte_);
    for (int byte = 0; byte < 128 && format.missing.count == 0; ++byte) {
      const auto cell = static_cast<std::uint8_t>(byte);
      if (std::isalnum(byte)) parse_label({&cell, &cell + 1}, label_of_byte_ + byte);
    }
  }

  // Parses a line without quotes into row `row` of the columns; returns the start of the next line. Returns null for a
  // line that is not good, or has quotes.
  const std::uint8_t* parse_good(const std::uint8_t* at, std::int64_t row) const {
    if (!can_be_read_at_once_) return nullptr;
    // Locals, as for the compiler any stored byte may alias what a pointer refers to.
    const LogKernelsRows rows = rows_;
    const std::int64_t num_columns = format_.num_columns;
    const std::uint8_t* const text_end = text_end_;
    const std::uint8_t separator = format_.separator;
    const bool is_rewritten = format_.missing.count != 0 || format_.trim;
    for (std::int64_t column = 0; column < num_columns;) {
      const std::int64_t end = column + format_.alike[column];
      const std::uint8_t kind = format_.kinds[column];
      std::int64_t slot = format_.slots[column] * rows.capacity + row;
      if (kind == LOG_KERNELS_INTEGER_COLUMN && !is_rewritten) {
        for (; column < end; ++column, slot += rows.capacity) {
          const bool present = !ends_cell(*at, separator);
          std::int64_t integer = 0;
          if (present && !parse_integer(&at, text_end, &integer)) return nullptr;
          rows.integers[slot] = integer;
          rows.integers_present[slot] = present;
          if (*at++ != separator) return column + 1 == num_columns ? next_line(at - 1) : nullptr;
        }
      } else if (kind == LOG_KERNELS_HEX32_COLUMN && !is_rewritten) {
        for (; column < end; ++column, slot += rows.capacity) {
          const bool present = !ends_cell(*at, separator);
          std::uint32_t value = 0;
          if (present && (text_end - at <= kHexDigits || !parse_hex(at, &value))) return nullptr;
          rows.values[slot] = value;
          rows.values_present[slot] = present;
          at += present ? kHexDigits : 0;
          if (*at++ != separator) return column + 1 == num_columns ? next_line(at - 1) : nullptr;
        }
      } else if (kind == LOG_KERNELS_LABEL_COLUMN && label_of_byte_[*at] != LOG_KERNELS_UNLABELLED &&
                 at[1] == separator) {
        rows.labels[row] = label_of_byte_[*at];
        at += 2;
        ++column;
      } else {
        for (; column < end; ++column, slot += rows.capacity) {
          bool is_ascii;
          Cell cell{at, cell_end(at, &is_ascii)};
          at = cell.end;
          if (*at == '\n' && cell.size() != 0 && cell.end[-1] == '\r') --cell.end;
          trim(&cell);
          if ((missing_lengths_ & length_bit(cell.size())) && is_one_of(cell, format_.missing)) cell.end = cell.start;
          if (kind == LOG_KERNELS_STRING_COLUMN) {
            rows.string_starts[slot] = cell.start - text_;
            rows.string_lengths[slot] = cell.size();
            if (!is_ascii && !is_utf8(cell)) return nullptr;
          } else if (store(column, row, cell) != LOG_KERNELS_KEPT) {
            return nullptr;
          }
          if (*at++ != separator) return column + 1 == num_columns ? next_line(at - 1) : nullptr;
        }
      }
    }
    return nullptr;
  }

  // Returns the reason to reject the line [line, end), or LOG_KERNELS_KEPT: row `row` of the columns then holds it.
  LogKernelsReason parse(std::uint8_t* line, std::uint8_t* end, std::int64_t row) const {
    if (end > line && end[-1] == '\r') --end;  // a line may end in \r\n
    std::uint8_t separator = format_.separator;
    if (format_.quotes) {
      if (std::memchr(line, kBareSeparator, end - line) != nullptr) return LOG_KERNELS_QUOTES;
      if (std::memchr(line, '"', end - line) != nullptr) {
        end = unquote(line, end, separator, format_.trim);
        if (end == nullptr) return LOG_KERNELS_QUOTES;
        separator = kBareSeparator;
      }
    }
    return parse_any(line, end, separator, row);
  }

 private:
  static std::uint64_t length_bit(std::int64_t length) { return std::uint64_t{1} << (length & 63); }

  void trim(Cell* cell) const {
    while (format_.trim && cell->start < cell->end && *cell->start == ' ') ++cell->start;
    while (format_.trim && cell->start < cell->end && cell->end[-1] == ' ') --cell->end;
  }

  static bool ends_cell(std::uint8_t byte, std::uint8_t separator) {
    return byte == separator || byte == '\n' || byte == '\r';
  }

  // Returns the start of the line after the one that ends at `at`; null if none does.
  static const std::uint8_t* next_line(const std::uint8_t* at) {
    at += *at == '\r';
    return *at == '\n' ? at + 1 : nullptr;
  }

  // Returns the first separator, quote if there may be some, or line end from `at` on.
  const std::uint8_t* cell_end(const std::uint8_t* at, bool* is_ascii) const {
    const std::uint64_t separators = bytes_of(format_.separator), quotes = bytes_of(format_.quotes ? '"' : '\n');
    for (std::uint64_t high = 0;; at += kWordBytes) {
      const std::uint64_t word = word_at(at, text_end_);
      const std::uint64_t hits = zero_byte(word ^ separators) | zero_byte(word ^ quotes) | zero_byte(word ^ bytes_of('\n'));
      high |= word & (hits != 0 ? (hits & -hits) - 1 : ~std::uint64_t{0});
      if (hits != 0) {
        *is_ascii = (high & bytes_of(0x80)) == 0;
        return at + __builtin_ctzll(hits) / 8;
      }
    }
  }

  // Splits a line into cells, parses all of them, and returns the first reason to reject it, or LOG_KERNELS_KEPT.
  LogKernelsReason parse_any(const std::uint8_t* line, const std::uint8_t* end, std::uint8_t separator,
                             std::int64_t row) const {
    std::int64_t num_separators = 0;
    for (const std::uint8_t* at = line; at < end; ++at) num_separators += *at == separator;
    if (num_separators != format_.num_columns - 1) return LOG_KERNELS_COLUMNS;
    LogKernelsReason reason = LOG_KERNELS_KEPT;
    for (std::int64_t column = 0; column < format_.num_columns; ++column) {
      Cell cell{line, std::find(line, end, separator)};
      line = cell.end + 1;
      trim(&cell);
      if (is_one_of(cell, format_.missing)) cell.end = cell.start;
      const LogKernelsReason bad = store(column, row, cell);
      if (bad != LOG_KERNELS_KEPT && (reason == LOG_KERNELS_KEPT || bad < reason)) reason = bad;
    }
    return reason;
  }

  // Stores a cell in row `row` of its column; returns the reason to reject it, or LOG_KERNELS_KEPT.
  LogKernelsReason store(std::int64_t column, std::int64_t row, Cell cell) const {
    const std::int64_t slot = format_.slots[column] * rows_.capacity + row;
    const bool present = cell.size() != 0;
    switch (format_.kinds[column]) {
      case LOG_KERNELS_LABEL_COLUMN:
        return parse_label(cell, rows_.labels + row) ? LOG_KERNELS_KEPT : LOG_KERNELS_LABEL;
      case LOG_KERNELS_INTEGER_COLUMN:
        rows_.integers[slot] = 0;
        rows_.integers_present[slot] = present;
        if (!present) return LOG_KERNELS_KEPT;
        return parse_integer(&cell.start, cell.end, rows_.integers + slot) && cell.size() == 0 ? LOG_KERNELS_KEPT
                                                                                              : LOG_KERNELS_INTEGER;
      case LOG_KERNELS_HEX32_COLUMN:
        rows_.values[slot] = 0;
        rows_.values_present[slot] = present;
        if (!present) return LOG_KERNELS_KEPT;
        return cell.size() == kHexDigits && parse_hex(cell.start, rows_.values + slot) ? LOG_KERNELS_KEPT
                                                                                      : LOG_KERNELS_CATEGORICAL;
      case LOG_KERNELS_BOOLEAN_COLUMN:
        rows_.values[slot] = 0;
        rows_.values_present[slot] = present;
        return !present || parse_boolean(cell, rows_.values + slot) ? LOG_KERNELS_KEPT : LOG_KERNELS_CATEGORICAL;
      case LOG_KERNELS_STRING_COLUMN:
        rows_.string_starts[slot] = cell.start - text_;
        rows_.string_lengths[slot] = cell.size();
        return is_utf8(cell) ? LOG_KERNELS_KEPT : LOG_KERNELS_CATEGORICAL;
      case LOG_KERNELS_ID_COLUMN:
        rows_.string_starts[slot] = cell.start - text_;
        rows_.string_lengths[slot] = cell.size();
        return LOG_KERNELS_KEPT;
      case LOG_KERNELS_FLOAT_COLUMN:
        rows_.floats[slot] = 0;
        rows_.floats_present[slot] = present;
        return !present || parse_decimal(cell, rows_.floats + slot) ? LOG_KERNELS_KEPT : LOG_KERNELS_FLOAT;
      case LOG_KERNELS_TIMESTAMP_COLUMN:
        rows_.times[slot] = 0;
        rows_.times_present[slot] = present;
        return !present || parse_timestamp(cell, format_.slots[column], rows_.times + slot) ? LOG_KERNELS_KEPT
                                                                                          : LOG_KERNELS_TIMESTAMP;
      case LOG_KERNELS_WEIGHT_COLUMN: {
        double weight;
        if (!parse_decimal(cell, &weight) || weight < 0) return LOG_KERNELS_WEIGHT;
        rows_.weights[row] = static_cast<float>(weight);
        return LOG_KERNELS_KEPT;
      }
      default:
        return LOG_KERNELS_KEPT;
    }
  }

  // Parses a time of the column with this number among those of times.
  bool parse_timestamp(Cell cell, std::int64_t number, std::int64_t* time) const {
    const std::uint8_t* const form = format_.time_forms.data + format_.time_forms.starts[number];
    const std::int64_t form_size = format_.time_forms.lengths[number];
    if (std::memchr(form, '%', form_size) != nullptr) return parse_time(cell, form, form_size, time);
    const std::int64_t unit = *form == 's' ? 1000 : 1;
    std::int64_t units;
    if (!parse_integer(&cell.start, cell.end, &units) || cell.size() != 0) return false;
    if (units < kFirstTime / unit || units > kLastTime / unit) return false;
    if (unit == 1 && units >= kFirstLikelySecond && units <= kLastLikelySecond) return false;
    *time = units * unit;
    return true;
  }

  bool parse_decimal(Cell cell, double* number) const {
    return parse_float(cell, format_.decimal_comma ? ',' : '.', number);
  }

  // Parses a label; returns false for a bad one. See parse.parse_labels.
  bool parse_label(Cell cell, std::uint8_t* label) const {
    double number;
    if (format_.relation != LOG_KERNELS_NO_RULE && parse_decimal(cell, &number)) {
      *label = holds(number);
      return true;
    }
    *label = is_one_of(cell, format_.clicked);
    if (*label || is_one_of(cell, format_.not_clicked)) return true;
    if (format_.rest != LOG_KERNELS_NO_REST && cell.size() != 0) {
      *label = format_.rest == LOG_KERNELS_REST_CLICKED;
      return true;
    }
    *label = LOG_KERNELS_UNLABELLED;
    return format_.label_is_optional && cell.size() == 0;
  }

  bool holds(double number) const {
    switch (format_.relation) {
      case LOG_KERNELS_AT_LEAST:
        return number >= format_.bound;
      case LOG_KERNELS_AT_MOST:
        return number <= format_.bound;
      case LOG_KERNELS_EQUAL:
        return number == format_.bound;
      case LOG_KERNELS_ABOVE:
        return number > format_.bound;
      default:
        return number < format_.bound;
    }
  }

  const std::uint8_t* text_;
  const std::uint8_t* text_end_;
  const LogKernelsFormat& format_;
  const LogKernelsRows& rows_;
  bool can_be_read_at_once_;
  std::uint64_t missing_lengths_ = 0;  // a bit for each length, modulo 64, of a string that stands for a missing cell
  std::uint8_t label_of_byte_[256];    // of cells of one letter or digit
};

}  // namespace

int64_t log_kernels_parse(uint8_t* text, int64_t num_bytes, int64_t max_line_bytes, const LogKernelsFormat* format,
                          const LogKernelsRows* rows, const LogKernelsRejects* rejects, int64_t* num_rejects) {
  std::uint8_t* const text_end = text + num_bytes;
  const LineParser parser(text, text_end, *format, *rows);
  std::int64_t num_rows = 0, num_bad = 0;
  for (std::uint8_t* line = text; line < text_end;) {
    const std::int64_t line_number = num_rows + num_bad;
    if (line_number == rows->capacity) {
      *num_rejects = 0;
      return -1;
    }
    const std::uint8_t* const next = parser.parse_good(line, num_rows);
    if (next != nullptr && next - 1 - line <= max_line_bytes) {
      rows->line_numbers[num_rows++] = line_number;
      line += next - line;
      continue;
    }
    auto* const end = static_cast<std::uint8_t*>(std::memchr(line, '\n', text_end - line));
    const LogKernelsReason reason =
        end - line > max_line_bytes ? LOG_KERNELS_TOO_LONG : parser.parse(line, end, num_rows);
    if (reason == LOG_KERNELS_KEPT) {
      rows->line_numbers[num_rows++] = line_number;
    } else {
      rejects->line_numbers[num_bad] = line_number;
      rejects->starts[num_bad] = line - text;
      rejects->ends[num_bad] = end - text;
      rejects->reasons[num_bad++] = reason;
    }
    line = end + 1;
  }
  *num_rejects = num_bad;
  return num_rows;
}
