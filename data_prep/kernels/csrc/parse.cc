// Parses lines into columns, according to the description of a log's format. A good line without quotes is read once,
// cell by cell. Any other line is split into cells first, to find the reason to reject it.
//
// The text ends in '\n', so a search for the end of a cell needs no bound. A separator is never '\n', '\r', '"' or '-'.

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

constexpr std::uint8_t kBareSeparator = 0x1F;  // Equal to parsed.BARE_SEPARATOR.
constexpr int kHexDigits = 8;
constexpr int kIntegerDigits = 19;  // Number of digits of the largest int64. Any 19 digits fit in uint64.
constexpr int kWordBytes = 8;
constexpr int kExponentDigits = 4;
// Whole numbers up to kExactMantissa and the powers of 10 in kPowers are exact doubles, so the product or quotient of
// two of them is rounded only once.
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

// Finds the first zero byte in `word`: returns a word whose lowest set bit is the high bit of this byte, or 0 if there
// is no zero byte.
inline std::uint64_t zero_byte(std::uint64_t word) { return (word - bytes_of(0x01)) & ~word & bytes_of(0x80); }

struct Cell {
  const std::uint8_t* start;
  const std::uint8_t* end;
  std::int64_t size() const { return end - start; }
};

// Parses eight lower-case hex digits in one word, in the same way as parse._parse_hex.
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

// Parses an integer -?[0-9]{1,19} at *at and moves *at past it. Returns false if there is none, or if it is out of the
// range of int64. Does not read beyond `end`.
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

// Moves *at from the end of an integer past a decimal point and zeros, as in 12.0. The decimal point is '.' or `point`.
// Other digits after the zeros are not skipped, so the caller does not find the end of the cell and rejects it.
inline void skip_point_zero(const std::uint8_t** at, const std::uint8_t* end, std::uint8_t point) {
  const std::uint8_t* next = *at;
  if (end - next < 2 || (*next != '.' && *next != point) || next[1] != '0') return;
  for (++next; next < end && *next == '0'; ++next) {
  }
  *at = next;
}

// Returns the eight bytes of the text at `at`. Bytes after the end of the text are line ends.
inline std::uint64_t word_at(const std::uint8_t* at, const std::uint8_t* text_end) {
  if (text_end - at >= kWordBytes) return load_word(at);
  std::uint64_t word = bytes_of('\n');
  std::memcpy(&word, at, text_end - at);
  return word;
}

// Parses a cell [-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})? as parse._parse_floats does. Returns false for a
// bad cell, or for a number out of the range of float32. The number is rounded correctly, and becomes 0 if it is too
// small for a normal double. The decimal point is '.' or `point`.
bool parse_float(Cell cell, std::uint8_t point, double* number) {
  const std::uint8_t *at = cell.start, *const end = cell.end;
  const bool negative = at < end && *at == '-';
  at += at < end && (*at == '-' || *at == '+');
  const std::uint8_t* const start = at;
  std::uint64_t mantissa = 0;
  // The number is mantissa * 10^power if it has up to 19 significant digits.
  std::int64_t num_digits = 0, num_significant = 0, power = 0;
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

inline bool is_blank(std::uint8_t byte) { return byte == ' ' || byte == '\t'; }

// Returns the cell without the blanks around it.
Cell without_blanks(Cell cell) {
  while (cell.start < cell.end && is_blank(*cell.start)) ++cell.start;
  while (cell.start < cell.end && is_blank(cell.end[-1])) --cell.end;
  return cell;
}

// Parses a cell as a vector of `width` numbers, as parse.parse_vectors does. Returns false for a bad cell, and leaves
// `values` undefined then. Sets *present to false for a missing vector.
bool parse_vector(Cell cell, std::int64_t width, bool decimal_comma, float* values, bool* present) {
  cell = without_blanks(cell);
  if (cell.size() > 1) {
    const std::uint8_t first = *cell.start, last = cell.end[-1];
    if ((first == '[' && last == ']') || (first == '(' && last == ')') || (first == '{' && last == '}')) {
      cell = without_blanks({cell.start + 1, cell.end - 1});
    }
  }
  *present = cell.size() != 0;
  const auto is_mark = [decimal_comma](std::uint8_t byte) {
    return byte == ';' || byte == '|' || (byte == ',' && !decimal_comma);
  };
  const std::uint8_t* at = cell.start;
  for (std::int64_t place = 0; *present; ++place) {
    const std::uint8_t* const start = at;
    while (at < cell.end && !is_blank(*at) && !is_mark(*at)) ++at;
    double number;
    if (place == width || !parse_float({start, at}, decimal_comma ? ',' : '.', &number)) return false;
    values[place] = static_cast<float>(number);
    if (at == cell.end) return place + 1 == width;
    while (at < cell.end && is_blank(*at)) ++at;
    if (is_mark(*at)) ++at;
    while (at < cell.end && is_blank(*at)) ++at;
  }
  return true;
}

// First and last millisecond of the years 1 to 9999, counted from 1970.
constexpr std::int64_t kFirstTime = -62135596800000, kLastTime = 253402300799999;

// Returns the number of days from 1970-01-01 to a date of the Gregorian calendar (H. Hinnant, "chrono-compatible
// low-level date algorithms").
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

// Returns true for the codes of a form that do not stand for digits: names, halves of the day, and time zones.
bool is_no_digits(std::uint8_t code) { return code == 'a' || code == 'b' || code == 'p' || code == 'z'; }

// Returns true if a digit may stand directly before or after the code at form[i], the letter after a %. Such a code
// needs all of its digits, see time_pattern in options/kinds.py.
bool is_beside_digits(std::string_view form, std::size_t i) {
  const bool before = i >= 2 && (is_digit(form[i - 2]) || (i >= 3 && form[i - 3] == '%' && !is_no_digits(form[i - 2])));
  if (before || i + 1 == form.size()) return before;
  return is_digit(form[i + 1]) || (form[i + 1] == '%' && !is_no_digits(form[i + 2]));
}

constexpr std::string_view kMonths[] = {"january", "february", "march",     "april",   "may",      "june",
                                        "july",    "august",   "september", "october", "november", "december"};
constexpr std::string_view kWeekdays[] = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};

// The parts of a time, as they are written in a cell.
struct TimeParts {
  std::int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, millisecond = 0;
  std::int64_t hours_of_half = -1;  // Hours to add to the hour: 0 for AM, 12 for PM, -1 if the cell names neither.
  std::int64_t minutes_ahead = 0;   // Minutes by which the cell's zone is ahead of UTC.
  bool has_zone = false;
};

// Parses a number of `least` to `most` digits and moves *at past them. Returns false if there are fewer digits.
bool parse_digits(const std::uint8_t** at, const std::uint8_t* end, int least, int most, std::int64_t* number) {
  const std::uint8_t* const start = *at;
  for (*number = 0; *at < end && *at - start < most && is_digit(**at); ++*at) *number = *number * 10 + (**at - '0');
  return *at - start >= least;
}

// Parses one of `names` or its first three letters, in upper or lower case, and moves *at past it. Returns the number
// of the name, counted from 1, or 0 if there is no name.
template <std::size_t count>
std::int64_t parse_name(const std::uint8_t** at, const std::uint8_t* end, const std::string_view (&names)[count]) {
  constexpr std::size_t kShort = 3;
  for (std::size_t place = 0; place < count; ++place) {
    std::size_t size = 0;
    while (size < names[place].size() && *at + size < end && ((*at)[size] | 0x20) == names[place][size]) ++size;
    if (size < kShort) continue;
    *at += size == names[place].size() ? size : kShort;
    return static_cast<std::int64_t>(place) + 1;
  }
  return 0;
}

// Parses a time zone such as Z, UTC, GMT, +02, +0200 or +02:00 and moves *at past it.
bool parse_zone(const std::uint8_t** at, const std::uint8_t* end, TimeParts* parts) {
  parts->has_zone = true;
  for (const std::string_view name : {"Z", "UTC", "GMT"}) {
    if (static_cast<std::size_t>(end - *at) >= name.size() && !std::memcmp(*at, name.data(), name.size())) {
      *at += name.size();
      return true;
    }
  }
  if (*at == end || (**at != '+' && **at != '-')) return false;
  const std::int64_t sign = *(*at)++ == '-' ? -1 : 1;
  std::int64_t hours = 0, minutes = 0;
  if (!parse_digits(at, end, 2, 2, &hours) || hours > 23) return false;
  const std::uint8_t* after = *at + (*at < end && **at == ':');
  if (parse_digits(&after, end, 2, 2, &minutes) && minutes < 60) {
    *at = after;
  } else {
    minutes = 0;
  }
  parts->minutes_ahead = sign * (hours * 60 + minutes);
  return true;
}

// Parses the start of a cell by a form with % codes, as times.parse_times does, and moves *at past it.
bool parse_form(const std::uint8_t** at, const std::uint8_t* end, std::string_view form, TimeParts* parts) {
  constexpr int kFractionDigits = 9, kMillisecondDigits = 3;
  for (std::size_t i = 0; i < form.size(); ++i) {
    // The fraction after %S may be missing, together with the point or comma before it.
    if (i >= 2 && form.compare(i - 2, 2, "%S") == 0) {
      const bool has_mark = form[i] == '.' || form[i] == ',';
      const std::uint8_t* const digits = *at + has_mark;
      const bool has_fraction = digits < end && is_digit(*digits) && (!has_mark || **at == form[i]);
      if (form.compare(i + has_mark, 2, "%f") == 0 && !has_fraction) {
        i += has_mark + 1;
        continue;
      }
    }
    if (form[i] != '%') {
      if (*at == end || *(*at)++ != static_cast<std::uint8_t>(form[i])) return false;
      continue;
    }
    const char code = form[++i];
    std::int64_t number = 0;
    if (code == 'p') {
      if (end - *at < 2 || ((*at)[1] | 0x20) != 'm') return false;
      const std::uint8_t half = **at | 0x20;
      if (half != 'a' && half != 'p') return false;
      parts->hours_of_half = half == 'p' ? 12 : 0;
      *at += 2;
    } else if (code == 'z') {
      if (!parse_zone(at, end, parts)) return false;
    } else if (code == 'a') {
      if (parse_name(at, end, kWeekdays) == 0) return false;
    } else if (code == 'b') {
      parts->month = parse_name(at, end, kMonths);
      if (parts->month == 0) return false;
    } else if (code == 'f') {
      const std::uint8_t* const start = *at;
      if (!parse_digits(at, end, 1, kFractionDigits, &number)) return false;
      std::int64_t digits = *at - start;
      for (; digits > kMillisecondDigits; --digits) number /= 10;
      for (; digits < kMillisecondDigits; ++digits) number *= 10;
      parts->millisecond = number;
    } else {
      const bool is_year = code == 'Y' || code == 'y', is_free = !is_year && !is_beside_digits(form, i);
      const bool has_blank = is_free && *at < end && **at == ' ';  // A blank may replace a leading zero.
      *at += has_blank;
      const int most = code == 'Y' ? 4 : 2;
      if (!parse_digits(at, end, is_free ? 1 : most, has_blank ? 1 : most, &number)) return false;
      if (code == 'I' && (number < 1 || number > 12)) return false;
      std::int64_t* const part = is_year        ? &parts->year
                                 : code == 'm'  ? &parts->month
                                 : code == 'd'  ? &parts->day
                                 : code == 'M'  ? &parts->minute
                                 : code == 'S'  ? &parts->second
                                                : &parts->hour;
      *part = code == 'y' ? number + (number >= 69 ? 1900 : 2000) : code == 'I' ? number % 12 : number;
    }
  }
  return true;
}

// Parses the start of a cell as ISO 8601: a date, optionally followed by a time of day and a zone.
bool parse_iso(const std::uint8_t** at, const std::uint8_t* end, TimeParts* parts) {
  if (!parse_form(at, end, "%Y-%m-%d", parts)) return false;
  if (*at == end) return true;
  const std::uint8_t between = *(*at)++;
  if ((between != 'T' && between != ' ') || !parse_form(at, end, "%H:%M", parts)) return false;
  if (*at < end && **at == ':' && !parse_form(at, end, ":%S.%f", parts)) return false;
  if (*at == end) return true;
  *at += **at == ' ';
  return parse_zone(at, end, parts);
}

// Converts the parts of a time to milliseconds since 1970, in UTC if they have a zone, and else by the clock of the
// column's zone. Returns false if there is no such day or hour.
bool time_of(const TimeParts& parts, std::int64_t* time) {
  const std::int64_t hour = parts.hour + (parts.hours_of_half > 0 ? parts.hours_of_half : 0);
  if (parts.year < 1 || parts.month < 1 || parts.month > 12 || parts.day < 1 ||
      parts.day > days_of_month(parts.year, parts.month) || hour > 23 || parts.minute > 59 || parts.second > 59) {
    return false;
  }
  const std::int64_t days = days_from_civil(parts.year, parts.month, parts.day);
  const std::int64_t minutes = (days * 24 + hour) * 60 + parts.minute - parts.minutes_ahead;
  *time = (minutes * 60 + parts.second) * 1000 + parts.millisecond;
  return true;
}

constexpr int kNoUnit = LOG_KERNELS_ISO;
// Range of times that are likely in logs, in milliseconds since 1970, as LIKELY_SECONDS in options/kinds.py.
constexpr std::int64_t kFirstLikely = 600000000000, kEndOfLikely = 4100000000000;

// A decimal number of time units since 1970, which is digits * 10^power.
struct TimeNumber {
  bool negative = false;
  std::uint64_t digits = 0;
  std::int64_t power = 0;
};

// Returns 10^power, or 0 if it does not fit in 64 bits.
std::uint64_t power_of_ten(std::int64_t power) {
  if (power > kIntegerDigits) return 0;
  std::uint64_t result = 1;
  for (; power > 0; --power) result *= 10;
  return result;
}

// Converts a number in a unit (LogKernelsTimes) to milliseconds, rounded down. Returns kLastTime + 1 if it is out of
// range.
std::int64_t milliseconds_of(const TimeNumber& number, int unit) {
  const std::int64_t shift = number.power + 3 - 3 * unit;
  const std::uint64_t scale = power_of_ten(std::abs(shift));
  std::uint64_t milliseconds = 0, rest = number.digits;
  if (shift < 0 && scale != 0) {
    milliseconds = number.digits / scale;
    rest = number.digits % scale;
  } else if (shift >= 0 && number.digits != 0) {
    rest = 0;
    if (scale == 0 || __builtin_mul_overflow(number.digits, scale, &milliseconds)) return kLastTime + 1;
  }
  if (milliseconds > static_cast<std::uint64_t>(kLastTime)) return kLastTime + 1;
  if (!number.negative) return static_cast<std::int64_t>(milliseconds);
  const std::int64_t below = -static_cast<std::int64_t>(milliseconds) - (rest != 0);
  return below < kFirstTime ? kLastTime + 1 : below;
}

// Parses a cell -?[0-9]{1,19}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})? with at most 19 digits before the exponent.
bool parse_time_number(Cell cell, TimeNumber* number) {
  const std::uint8_t* at = cell.start;
  number->negative = at < cell.end && *at == '-';
  at += number->negative;
  const std::uint8_t* const start = at;
  bool has_point = false;
  std::int64_t num_digits = 0;
  for (; at < cell.end; ++at) {
    const unsigned digit = *at - unsigned{'0'};
    if (digit > 9) {
      if (*at != '.' || has_point || at == start) break;
      has_point = true;
      continue;
    }
    ++num_digits;
    number->digits = number->digits * 10 + digit;
    number->power -= has_point;
  }
  if (num_digits == 0 || num_digits > kIntegerDigits) return false;
  if (at < cell.end && (*at | 0x20) == 'e') {
    ++at;
    const bool is_negative = at < cell.end && *at == '-';
    at += at < cell.end && (*at == '-' || *at == '+');
    std::int64_t exponent = 0;
    if (!parse_digits(&at, cell.end, 1, 2, &exponent)) return false;
    number->power += is_negative ? -exponent : exponent;
  }
  return at == cell.end;
}

// Converts a number to a time, as times._time_of_number does. With kNoUnit, the size of the number decides its unit.
// The numbers 0 and -1 mean that there is no time, so they clear *present. Returns false for a bad number.
bool store_time_number(const TimeNumber& number, int unit, std::int64_t* time, std::uint8_t* present) {
  if (number.digits == 0 || (number.negative && number.power <= 0 && number.digits == power_of_ten(-number.power))) {
    *present = 0;
    return true;
  }
  if (unit == kNoUnit) {
    if (number.negative) return false;
    for (unit = LOG_KERNELS_SECONDS; (*time = milliseconds_of(number, unit)) >= kEndOfLikely; ++unit) {
      if (unit == LOG_KERNELS_NANOSECONDS) return false;
    }
    return unit != LOG_KERNELS_SECONDS || *time >= kFirstLikely;
  }
  *time = milliseconds_of(number, unit);
  std::int64_t first = kFirstLikely, end = kEndOfLikely;
  for (int coarser = 0; coarser < unit; ++coarser) {
    first /= 1000;
    end /= 1000;
    if (*time >= first && *time < end) return false;
  }
  return *time <= kLastTime;
}

// Returns true if a cell is valid UTF-8 for Python: without surrogates, without overlong forms, at most U+10FFFF.
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

// Parses a word for true (1) or false (0), in upper or lower case. log_format.BOOLEANS lists the words.
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

// Removes the quotes of RFC 4180 from a line in place, and puts kBareSeparator between its cells. Returns the new end
// of the line, or null if a cell begins with a quote and does not end with one. parse.quoted_cells has the same rules.
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

// A parser of single lines, which writes the cells of a good line into a row of the output columns.
class LineParser {
 public:
  LineParser(const std::uint8_t* text, const std::uint8_t* text_end, const LogKernelsFormat& format,
             const LogKernelsRows& rows)
      : text_(text), text_end_(text_end), format_(format), rows_(rows) {
    // parse_good needs a separator that cannot be part of a number. In a log with quotes, it also needs a text without
    // kBareSeparator, because lines with this byte are rejected.
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

  // Parses a line without quotes into row `row` of the columns, and returns the start of the next line. Returns null if
  // the line is bad or has quotes.
  const std::uint8_t* parse_good(const std::uint8_t* at, std::int64_t row) const {
    if (!can_be_read_at_once_) return nullptr;
    // These are local copies, because the compiler must assume that a stored byte may change any member.
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
          if (present && separator != '.') skip_point_zero(&at, text_end, format_.decimal_comma ? ',' : '.');
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

  // Parses the line [line, end) into row `row` of the columns. Returns the reason to reject it, or LOG_KERNELS_KEPT.
  LogKernelsReason parse(std::uint8_t* line, std::uint8_t* end, std::int64_t row) const {
    if (end > line && end[-1] == '\r') --end;  // A line may end in \r\n.
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

  // Returns the start of the next line if a line ends at `at`, and null otherwise.
  static const std::uint8_t* next_line(const std::uint8_t* at) {
    at += *at == '\r';
    return *at == '\n' ? at + 1 : nullptr;
  }

  // Returns the position of the first separator or line end from `at` on, or of the first quote in a format with
  // quotes. Sets *is_ascii to whether all bytes before it are ASCII.
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

  // Splits a line into cells and parses all of them. Returns the smallest reason to reject it, or LOG_KERNELS_KEPT.
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

  // Parses a cell into row `row` of its column. Returns the reason to reject it, or LOG_KERNELS_KEPT.
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
        if (!parse_integer(&cell.start, cell.end, rows_.integers + slot)) return LOG_KERNELS_INTEGER;
        skip_point_zero(&cell.start, cell.end, format_.decimal_comma ? ',' : '.');
        return cell.size() == 0 ? LOG_KERNELS_KEPT : LOG_KERNELS_INTEGER;
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
        return !present || parse_timestamp(cell, format_.slots[column], rows_.times + slot, rows_.times_present + slot)
                   ? LOG_KERNELS_KEPT
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

  // Parses a cell of time column `number` (an index among the columns of times). Sets *present to 0 for a cell that
  // means that there is no time.
  bool parse_timestamp(Cell cell, std::int64_t number, std::int64_t* time, std::uint8_t* present) const {
    const int kind = format_.time_kinds[number];
    if (kind != LOG_KERNELS_CODES) {
      TimeNumber digits;
      if (parse_time_number(cell, &digits)) return store_time_number(digits, kind, time, present);
      if (kind != LOG_KERNELS_ISO) return false;
    }
    TimeParts parts;
    const std::uint8_t* at = cell.start;
    const LogKernelsStrings& forms = format_.time_forms;
    const std::string_view form(reinterpret_cast<const char*>(forms.data) + forms.starts[number],
                                forms.lengths[number]);
    const bool good = kind == LOG_KERNELS_ISO ? parse_iso(&at, cell.end, &parts) : parse_form(&at, cell.end, form, &parts);
    if (!good || at != cell.end || !time_of(parts, time)) return false;
    if (!parts.has_zone) {
      const std::int64_t* const first = format_.zone_starts + format_.zone_firsts[number];
      const std::int64_t* const last = format_.zone_starts + format_.zone_firsts[number + 1];
      *time -= format_.zone_offsets[std::upper_bound(first, last, *time) - 1 - format_.zone_starts];
    }
    return *time >= kFirstTime && *time <= kLastTime;
  }

  bool parse_decimal(Cell cell, double* number) const {
    return parse_float(cell, format_.decimal_comma ? ',' : '.', number);
  }

  // Parses a cell of the label as parse.parse_labels does. Returns false for a bad cell.
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
  std::uint64_t missing_lengths_ = 0;  // Bit i is set if a text for missing cells has length i modulo 64.
  std::uint8_t label_of_byte_[256];    // Label of each cell that is one letter or digit, else LOG_KERNELS_UNLABELLED.
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

void log_kernels_parse_vectors(const LogKernelsStrings* cells, int64_t width, uint8_t decimal_comma, float* values,
                               uint8_t* present, uint8_t* good) {
  for (std::int64_t row = 0; row < cells->count; ++row, values += width) {
    const std::uint8_t* const start = cells->data + cells->starts[row];
    bool is_present = false;
    good[row] = parse_vector({start, start + cells->lengths[row]}, width, decimal_comma != 0, values, &is_present);
    present[row] = good[row] != 0 && is_present;
    if (!present[row]) std::fill_n(values, width, 0.0F);
  }
}
