// Counts distinct strings with a hash table, splits and joins strings, and looks up their ids in a vocabulary. A key (a
// 64-bit hash) only serves to find a string quickly. Whether two strings are equal is decided by their bytes.
//
// Anyone can construct strings that share a key. A log of such strings must not take longer than others. So the slots
// of the hash table come from another hash, which uses a secret, and the strings of a vocabulary that share a key are
// searched by their bytes.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "log_kernels.h"
#include "value_bucket.h"

namespace {

constexpr std::int64_t kWordBytes = 8;
constexpr std::int64_t kTogether = 16;  // Number of strings whose searches advance together.

std::uint64_t word_at(const std::uint8_t* bytes, std::int64_t own_bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return own_bytes >= 8 ? word : word & ((std::uint64_t{1} << 8 * own_bytes) - 1);
}

// Returns the key of a string, as strings.Strings.keys does. The last step is the finalizer of SplitMix64.
std::uint64_t key_of(const std::uint8_t* text, std::int64_t length) {
  std::uint64_t key = static_cast<std::uint64_t>(length) * 0x9E3779B97F4A7C15;
  for (std::int64_t done = 0; done < length; done += 8) {
    key = (key ^ word_at(text + done, length - done)) * 0xD6E8FEB86659FD93;
    key ^= key >> 32;
  }
  key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9;
  key = (key ^ key >> 27) * 0x94D049BB133111EB;
  return key ^ key >> 31;
}

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  static std::uint64_t rotated(std::uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

  void round() {
    v0 += v1, v1 = rotated(v1, 13) ^ v0, v0 = rotated(v0, 32);
    v2 += v3, v3 = rotated(v3, 16) ^ v2;
    v0 += v3, v3 = rotated(v3, 21) ^ v0;
    v2 += v1, v1 = rotated(v1, 17) ^ v2, v2 = rotated(v2, 32);
  }

  void add(std::uint64_t word) {
    v3 ^= word;
    round();
    v0 ^= word;
  }
};

// Returns a hash of a string that depends on a secret. It is SipHash-1-3 (J.-P. Aumasson and D. J. Bernstein, "SipHash:
// a fast short-input PRF", 2012).
std::uint64_t secret_hash(const std::uint8_t* text, std::int64_t length, const std::uint64_t* secret) {
  SipState state{secret[0] ^ 0x736F6D6570736575, secret[1] ^ 0x646F72616E646F6D, secret[0] ^ 0x6C7967656E657261,
                 secret[1] ^ 0x7465646279746573};
  std::int64_t done = 0;
  for (; length - done >= 8; done += 8) state.add(word_at(text + done, 8));
  const std::uint64_t rest = done < length ? word_at(text + done, length - done) : 0;
  state.add(static_cast<std::uint64_t>(length) << 56 | rest);
  state.v2 ^= 0xFF;
  for (int i = 0; i < 3; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

// Returns the number by which the hash table finds a string. For a string of up to eight bytes the number consists of
// the bytes, so different strings of the same length have different numbers.
std::uint64_t table_key(const std::uint8_t* text, std::int64_t length, const std::uint64_t* secret) {
  if (length > kWordBytes) return secret_hash(text, length, secret);
  return length == 0 ? 0 : word_at(text, length) ^ static_cast<std::uint64_t>(length) << 56;
}

// Mixes a key of the hash table with the secret. As in wyhash (W. Yi), both halves of a product are combined.
std::uint64_t mixed(std::uint64_t key, const std::uint64_t* secret) {
  const auto product = static_cast<unsigned __int128>(key ^ secret[0]) * (secret[1] | 1);
  return static_cast<std::uint64_t>(product >> 64 ^ product);
}

bool same(const LogKernelsStrings& some, std::int64_t i, const LogKernelsStrings& others, std::int64_t j) {
  return some.lengths[i] == others.lengths[j] &&
         std::memcmp(some.data + some.starts[i], others.data + others.starts[j],
                     static_cast<std::size_t>(some.lengths[i])) == 0;
}

// Returns true if string i of `some` is less than string j of `others`, compared by bytes.
bool before(const LogKernelsStrings& some, std::int64_t i, const LogKernelsStrings& others, std::int64_t j) {
  const std::int64_t shorter = std::min(some.lengths[i], others.lengths[j]);
  const int order = std::memcmp(some.data + some.starts[i], others.data + others.starts[j],
                                static_cast<std::size_t>(shorter));
  return order != 0 ? order < 0 : some.lengths[i] < others.lengths[j];
}

// Searches among the strings of the vocabulary that share the key of string `first`. Returns the index of the first one
// that is not less than string `row` of `texts`, compared by bytes, or that of the last one if all are less.
std::int64_t index_among_equal_keys(const LogKernelsStrings& vocabulary, const std::uint64_t* keys, std::int64_t first,
                                    const LogKernelsStrings& texts, std::int64_t row) {
  if (first + 1 == vocabulary.count || keys[first + 1] != keys[first]) return first;
  std::int64_t end = std::upper_bound(keys + first, keys + vocabulary.count, keys[first]) - keys;
  const std::int64_t last = end - 1;
  while (first < end) {
    const std::int64_t middle = first + (end - first) / 2;
    if (before(vocabulary, middle, texts, row)) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return std::min(first, last);
}

// Writes to `found`, for each wanted key, the index of the first of the sorted `keys` that is not less than it, as
// std::lower_bound returns it. Several binary searches advance together step by step, so that their memory accesses
// overlap. Steps have no branches, since these could not be predicted.
void lower_bounds(const std::uint64_t* keys, std::int64_t num_keys, const std::uint64_t* wanted, std::int64_t count,
                  std::int64_t* found) {
  std::fill(found, found + count, 0);
  for (std::int64_t left = num_keys; left > 0;) {
    const std::int64_t half = (left + 1) / 2;
    for (std::int64_t i = 0; i < count; ++i) found[i] += keys[found[i] + half - 1] < wanted[i] ? half : 0;
    left -= half;
  }
}

// Returns the character between the values of a list, given the list's text without its brackets. The result is that of
// strings.divider_in_brackets.
std::uint8_t divider_in_brackets(const std::uint8_t* begin, const std::uint8_t* end, std::uint8_t separator) {
  bool has_separator = false, has_comma = false, is_of_numpy = true;
  for (const std::uint8_t* at = begin; at < end; ++at) {
    const bool is_first = at == begin || at[-1] == ' ' || at[-1] == ',' || at[-1] == separator;
    if (is_first && (*at == '\'' || *at == '"')) {
      const std::uint8_t* quote = at + 1;
      while (quote < end && *quote != *at) quote += *quote == '\\' ? 2 : 1;
      if (quote < end) {
        at = quote;
        continue;
      }
    }
    has_separator |= *at == separator;
    has_comma |= *at == ',';
    is_of_numpy &= std::memchr(" +-.0123456789e", *at, 15) != nullptr;
  }
  if (has_separator && !(separator == ' ' && has_comma)) return separator;
  return has_comma ? ',' : is_of_numpy ? ' ' : separator;
}

// Splits a list in brackets such as ['a', "b"], as strings.spans_in_brackets does, and calls `add` with the start and
// end of each value. Returns false for any other cell. The caller must then discard the values that were added so far.
template <typename Add>
bool split_brackets(const std::uint8_t* data, std::int64_t begin, std::int64_t end, std::uint8_t separator, Add add) {
  if (end - begin < 2) return false;
  const std::uint8_t opening = data[begin];
  const std::uint8_t closing = opening == '[' ? ']' : opening == '{' ? '}' : opening == '(' ? ')' : 0;
  if (closing == 0 || data[--end] != closing) return false;
  separator = divider_in_brackets(data + begin + 1, data + end, separator);
  if (opening == '(' && std::memchr(data + begin, separator, end + 1 - begin) == nullptr) return false;
  for (std::int64_t at = begin + 1; at <= end; ++at) {
    while (at < end && data[at] == ' ') ++at;
    std::int64_t next = at;
    if (at < end && (data[at] == '\'' || data[at] == '"')) {
      for (++next; next < end && data[next] != data[at]; ++next) next += data[next] == '\\';
      std::int64_t after = next + 1;
      while (separator != ' ' && after < end && data[after] == ' ') ++after;
      if (next < end && (after == end || data[after] == separator)) {
        add(at + 1, next);
        at = after;
        continue;
      }
    }
    for (next = at; next < end && data[next] != separator; ++next) {
      if (data[next] == opening || data[next] == closing) return false;
    }
    std::int64_t last = next;
    while (last > at && data[last - 1] == ' ') --last;
    add(at, last);
    at = next;
  }
  return true;
}

}  // namespace

int64_t log_kernels_count_strings(const LogKernelsStrings* texts, const uint64_t* secret, uint64_t key_mask,
                                int32_t* table, int64_t table_size, uint64_t* keys, int64_t* counts,
                                int64_t* firsts) {
  const std::uint64_t slots = static_cast<std::uint64_t>(table_size) - 1;
  std::fill(table, table + table_size, -1);
  std::int64_t num_distinct = 0;
  for (std::int64_t row = 0; row < texts->count; ++row) {
    const std::int64_t length = texts->lengths[row];
    const std::uint64_t key = table_key(texts->data + texts->starts[row], length, secret);
    std::uint64_t slot = mixed(key, secret) & slots;
    for (;; slot = (slot + 1) & slots) {
      const std::int32_t known = table[slot];
      if (known < 0) {
        table[slot] = static_cast<std::int32_t>(num_distinct);
        keys[num_distinct] = key;
        counts[num_distinct] = 1;
        firsts[num_distinct++] = row;
        break;
      }
      if (keys[known] == key && texts->lengths[firsts[known]] == length &&
          (length <= kWordBytes || same(*texts, row, *texts, firsts[known]))) {
        ++counts[known];
        break;
      }
    }
  }
  for (std::int64_t i = 0; i < num_distinct; ++i) {
    keys[i] = key_of(texts->data + texts->starts[firsts[i]], texts->lengths[firsts[i]]) & key_mask;
  }
  return num_distinct;
}

int64_t log_kernels_split_lists(const LogKernelsStrings* cells, uint8_t separator, int64_t max_length, uint8_t trim,
                                int64_t* starts, int64_t* value_lengths, int64_t* lengths, uint8_t* cut) {
  std::int64_t num_values = 0;
  for (std::int64_t row = 0; row < cells->count; ++row) {
    const std::int64_t begin = cells->starts[row], end = begin + cells->lengths[row], first_value = num_values;
    std::int64_t of_row = 0;
    const auto add = [&](std::int64_t first, std::int64_t last) {
      if (last <= first || of_row++ >= max_length) return;
      starts[num_values] = first;
      value_lengths[num_values++] = last - first;
    };
    if (!split_brackets(cells->data, begin, end, separator, add)) {
      num_values = first_value;
      of_row = 0;
      for (std::int64_t start = begin, at = start; at <= end; ++at) {
        if (at < end && cells->data[at] != separator) continue;
        std::int64_t first = start, last = at;
        while (trim && first < last && cells->data[first] == ' ') ++first;
        while (trim && first < last && cells->data[last - 1] == ' ') --last;
        add(first, last);
        start = at + 1;
      }
    }
    lengths[row] = std::min(of_row, max_length);
    cut[row] = of_row > max_length;
  }
  return num_values;
}

int64_t log_kernels_join_strings(const LogKernelsStrings* parts, int64_t num_parts, const uint8_t* present, uint8_t* data,
                               int64_t* starts, int64_t* lengths) {
  std::uint8_t* out = data;
  for (std::int64_t row = 0; row < parts[0].count; ++row) {
    std::uint8_t* const start = out;
    for (std::int64_t part = 0; present[row] && part < num_parts; ++part) {
      if (part > 0) *out++ = '*';
      const std::uint8_t* const text = parts[part].data + parts[part].starts[row];
      for (std::int64_t i = 0; i < parts[part].lengths[row]; ++i) {
        if (text[i] == '*' || text[i] == '\\') *out++ = '\\';
        *out++ = text[i];
      }
    }
    starts[row] = start - data;
    lengths[row] = out - start;
  }
  return out - data;
}

void log_kernels_find_strings(const LogKernelsStrings* texts, const uint8_t* present, const LogKernelsStrings* vocabulary,
                            const uint64_t* keys, const int64_t* known_ids, int64_t missing_id, int64_t first_oov_id,
                            int64_t num_oov_ids, int64_t* ids) {
  std::uint64_t wanted[kTogether];
  std::int64_t found[kTogether];
  for (std::int64_t first = 0; first < texts->count; first += kTogether) {
    const std::int64_t count = std::min(kTogether, texts->count - first);
    for (std::int64_t i = 0, row = first; i < count; ++i, ++row) {
      wanted[i] = present[row] ? key_of(texts->data + texts->starts[row], texts->lengths[row]) : 0;
    }
    lower_bounds(keys, vocabulary->count, wanted, count, found);
    for (std::int64_t i = 0, row = first; i < count; ++i, ++row) {
      if (!present[row]) {
        ids[row] = missing_id;
        continue;
      }
      ids[row] = first_oov_id + value_bucket(static_cast<std::uint32_t>(wanted[i] >> 32), num_oov_ids);
      if (found[i] == vocabulary->count || keys[found[i]] != wanted[i]) continue;
      const std::int64_t index = index_among_equal_keys(*vocabulary, keys, found[i], *texts, row);
      if (same(*texts, row, *vocabulary, index)) ids[row] = known_ids[index];
    }
  }
}
