// Lines to columns. Each line is read once, cell by cell; only a line that is not good is looked at again, for why.

#include <cstdint>
#include <cstring>

#include "log_kernels.h"

namespace {

constexpr int kHexDigits = 8;
constexpr int kIntegerDigits = 19;  // of the largest int64; any 19 digits fit in uint64

constexpr std::uint64_t bytes_of(std::uint8_t byte) { return byte * std::uint64_t{0x0101010101010101}; }

// Eight lower-case hex digits, side by side in one word; see parse._parse_hex.
inline bool parse_hex(const std::uint8_t* cell, std::uint32_t* value) {
  std::uint64_t word;
  std::memcpy(&word, cell, sizeof word);
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

// -?[0-9]{1,19} within int64; moves *cell past it. The text's last '\n' ends any run of digits.
inline bool parse_integer(const std::uint8_t** cell, std::int64_t* integer) {
  const std::uint8_t* place = *cell;
  const bool negative = *place == '-';
  place += negative;
  const std::uint8_t* const first_digit = place;
  std::uint64_t magnitude = 0;
  for (unsigned digit; (digit = *place - unsigned{'0'}) <= 9; ++place) magnitude = magnitude * 10 + digit;
  const std::int64_t num_digits = place - first_digit;
  *cell = place;
  *integer = static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
  return num_digits >= 1 && num_digits <= kIntegerDigits && magnitude <= (std::uint64_t{1} << 63) - !negative;
}

// Reads one line into place `row` of the columns.
class LineParser {
 public:
  LineParser(const std::uint8_t* text_end, const LogKernelsRows& rows) : text_end_(text_end), rows_(rows) {}

  // The start of the next line, or null where the line is not good; *bad_cell is then the reason if all
  // columns are there.
  const std::uint8_t* parse(const std::uint8_t* place, std::int64_t row, LogKernelsReason* bad_cell) const {
    *bad_cell = LOG_KERNELS_LABEL;
    const unsigned label = *place - unsigned{'0'};
    if (label > 1 || place[1] != '\t') return nullptr;
    rows_.labels[row] = static_cast<std::uint8_t>(label);
    place += 2;

    *bad_cell = LOG_KERNELS_INTEGER;
    const std::int64_t num_numeric = rows_.num_numeric;
    for (std::int64_t field = 0; field < num_numeric; ++field) {
      const std::int64_t cell = field * rows_.capacity + row;
      const bool present = *place != '\t';
      rows_.integers[cell] = 0;
      rows_.integers_present[cell] = present;
      if (present && !parse_integer(&place, rows_.integers + cell)) return nullptr;
      if (*place++ != '\t') return nullptr;
    }

    *bad_cell = LOG_KERNELS_CATEGORICAL;
    const std::int64_t last_value = rows_.num_categorical - 1;
    for (std::int64_t field = 0; field < last_value; ++field) {
      if (!parse_value(&place, *place != '\t', field, row)) return nullptr;
      if (*place++ != '\t') return nullptr;
    }
    if (!parse_value(&place, *place != '\n' && *place != '\r', last_value, row)) return nullptr;
    if (*place == '\r') ++place;  // a line may end in \r\n
    return *place == '\n' ? place + 1 : nullptr;
  }

 private:
  bool parse_value(const std::uint8_t** place, bool present, std::int64_t field, std::int64_t row) const {
    const std::int64_t cell = field * rows_.capacity + row;
    rows_.values[cell] = 0;
    rows_.values_present[cell] = present;
    if (!present) return true;
    const std::uint8_t* const digits = *place;
    if (text_end_ - digits <= kHexDigits || !parse_hex(digits, rows_.values + cell)) return false;
    *place = digits + kHexDigits;
    return true;
  }

  const std::uint8_t* text_end_;
  const LogKernelsRows& rows_;
};

std::int64_t count_tabs(const std::uint8_t* start, const std::uint8_t* end) {
  std::int64_t tabs = 0;
  for (; start < end; ++start) tabs += *start == '\t';
  return tabs;
}

}  // namespace

int64_t log_kernels_parse(const uint8_t* text, int64_t num_bytes, int64_t max_line_bytes, const LogKernelsRows* rows,
                          const LogKernelsRejects* rejects, int64_t* num_rejects) {
  const std::uint8_t* const text_end = text + num_bytes;
  const LineParser parser(text_end, *rows);
  const std::int64_t num_tabs = rows->num_numeric + rows->num_categorical;
  std::int64_t num_rows = 0, num_bad = 0;
  for (const std::uint8_t* line = text; line < text_end;) {
    const std::int64_t line_number = num_rows + num_bad;
    if (line_number == rows->capacity) {
      *num_rejects = 0;
      return -1;
    }
    LogKernelsReason bad_cell;
    const std::uint8_t* const next = parser.parse(line, num_rows, &bad_cell);
    if (next != nullptr) {
      rows->line_numbers[num_rows++] = line_number;
      line = next;
      continue;
    }
    const auto* const end = static_cast<const std::uint8_t*>(std::memchr(line, '\n', text_end - line));
    const bool too_long = end - line > max_line_bytes;
    rejects->line_numbers[num_bad] = line_number;
    rejects->starts[num_bad] = line - text;
    rejects->ends[num_bad] = end - text;
    rejects->reasons[num_bad++] =
        too_long ? LOG_KERNELS_TOO_LONG : count_tabs(line, end) != num_tabs ? LOG_KERNELS_COLUMNS : bad_cell;
    line = end + 1;
  }
  *num_rejects = num_bad;
  return num_rows;
}
