"""Find likely encodings of a text that is not UTF-8, and the command that converts it."""

from __future__ import annotations

import contextlib

import numpy as np

from common.packages import load

# Encodings of scripts other than Latin, in which most letters are bytes above 127. Keys are Python's names, and values
# are the names that iconv uses.
_OF_OTHER_SCRIPTS = {"gb18030": "GB18030", "big5": "BIG5", "cp932": "CP932", "cp949": "CP949", "koi8_r": "KOI8-R"} | {
    f"cp{number}": f"CP{number}" for number in (1251, 1253, 1255, 1256, 874)
}
_OF_LATIN = ("CP1252", "CP1250")  # Encodings of Latin scripts, in which few letters are bytes above 127.
# If more than this fraction of the bytes above 127 follow each other, the script is not Latin. The fraction is low,
# because the second byte of a two-byte letter may be below 128.
_SIDE_BY_SIDE = 0.3
_LOOKED_AT = 1 << 16  # Number of bytes that are examined.
_SHOWN = 4  # Maximum number of encodings in a message.


def to_utf8(text: bytes) -> str:
    """Return advice how to convert a log to UTF-8, with a command that names its most likely encoding.

    `text` are lines of the log. If they are empty, the advice does not name an encoding.
    """
    text = text[:_LOOKED_AT]
    high = np.frombuffer(text, np.uint8) > 127
    if not high.any():
        names = []
    elif np.count_nonzero(high[1:] & high[:-1]) > _SIDE_BY_SIDE * np.count_nonzero(high):
        matches = load("charset_normalizer").from_bytes(text, cp_isolation=list(_OF_OTHER_SCRIPTS))
        names = [_OF_OTHER_SCRIPTS[match.encoding] for match in matches][:_SHOWN]
    else:
        names = sorted((name for name in _OF_LATIN if _can_decode(text, name)), key=lambda name: _num_signs(text, name))
    if not names:
        return "convert the log from the encoding that its writer had: iconv -f ENCODING -t UTF-8 OLD > NEW"
    others = f"; by its bytes it could be {' or '.join(names[1:])} too, so look at some words" * (len(names) > 1)
    return f"convert the log: iconv -f {names[0]} -t UTF-8 OLD > NEW{others}"


def _can_decode(text: bytes, name: str) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        text.decode(name)
        return True
    return False


def _num_signs(text: bytes, name: str) -> int:
    """Count the characters beyond ASCII that are not letters. In a wrong encoding there are many of them."""
    return sum(not character.isalpha() for character in text.decode(name) if not character.isascii())
