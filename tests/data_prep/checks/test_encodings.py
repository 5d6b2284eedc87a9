"""The conversion that describe and prepare name for a text that is not UTF-8 gives the text back."""

import re

import pytest

from data_prep.checks.propose import describe
from data_prep.checks.reject_causes import to_utf8

WORDS = {
    "GB18030": ["北京", "上海", "连衣裙", "手机壳"],
    "BIG5": ["臺北", "點擊", "手機"],
    "CP932": ["東京", "クリック", "大阪"],
    "CP949": ["서울", "클릭", "부산"],
    "CP1251": ["Москва", "Тверь", "Нижний"],
    "KOI8-R": ["Москва", "Тверь", "Нижний"],
    "CP1253": ["Αθήνα", "κλικ", "πόλη"],
    "CP1252": ["Köln", "São Paulo", "Málaga – centro", "café"],
    "CP1250": ["Łódź", "Gdańsk", "Škoda"],
}


@pytest.mark.parametrize("encoding", WORDS)
def test_the_first_named_encoding_is_the_text_s(tmp_path, encoding):
    words = WORDS[encoding]
    lines = ["click,city,size", *(f"{row % 2},{words[row // 3 % len(words)]},{row % 7}" for row in range(600))]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode(encoding))
    comments = describe(str(tmp_path / "log.csv"), label="click").as_yaml()
    assert (
        re.search(r"600 of these rows are not valid UTF-8.*; convert the log: iconv -f (\S+) ", comments)[1] == encoding
    )


def test_bytes_that_an_encoding_lacks_rule_it_out():
    assert "CP1252" not in to_utf8("Ť na konci".encode("cp1250"))  # byte 0x8d
    assert "iconv -f ENCODING" in to_utf8(b"")
