"""`make doctor` says what will be used, and fails where a native part is missing or stale."""

import os
import re

import pytest

from common.native_library import NativeLibrary
from scripts import doctor


@pytest.fixture
def report(capsys, monkeypatch):
    """Run all checks but the slow one of MindSpore; returns the status and what was printed."""

    def run():
        monkeypatch.delitem(doctor.CHECKS, "MindSpore", raising=False)
        return doctor.main(), capsys.readouterr().out

    return run


def test_every_line_has_what_will_be_used(report):
    _, printed = report()
    lines = printed.splitlines()
    assert [line[:12].rstrip() for line in lines if line[:12].strip()] == list(doctor.CHECKS)
    assert sum("->" in line or "error: " in line for line in lines) == len(doctor.CHECKS)


@pytest.mark.parametrize("state", ["missing", "stale", "of another machine"])
def test_a_native_part_that_does_not_fit_is_an_error_with_the_way_out(report, monkeypatch, tmp_path, state):
    built = tmp_path / "csrc" / "build" / "libpart.so"
    built.parent.mkdir(parents=True)
    (tmp_path / "csrc" / "part.h").write_text("")
    (tmp_path / "csrc" / "part.cc").write_text("")
    if state != "missing":
        built.write_text("no library")
        os.utime(built, (1, 1) if state == "stale" else None)
    part = NativeLibrary("part", str(tmp_path / "part.py"), ["part.h"], "part is", "do without")
    monkeypatch.setitem(doctor.PARTS, "log kernels", (part, "something slower"))
    status, printed = report()
    said = {"missing": "not built", "stale": "was built before", "of another machine": "cannot be loaded"}[state]
    (line,) = (line for line in printed.splitlines() if line.startswith("log kernels"))
    assert status == 1 and said in line and "make native" in line and "Until then: something slower" in line


@pytest.mark.parametrize(
    ("name", "machine", "libc", "said"),
    [
        ("Linux", "x86_64", "glibc", "tested on such systems"),
        ("Linux", "aarch64", "glibc", "never run on an Arm machine"),
        ("Linux", "x86_64", "", "Linux x86_64: MindSpore has packages for"),
        ("Darwin", "arm64", "", "Darwin arm64: MindSpore has packages for"),
    ],
)
def test_the_system_decides_what_is_known(monkeypatch, name, machine, libc, said):
    monkeypatch.setattr(doctor.platform, "system", lambda: name)
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: (libc, ""))
    try:
        found = doctor.system()[1]
    except OSError as error:
        found = str(error)
    assert said in found


@pytest.mark.parametrize(("flags", "said"), [("avx2 fma", "without hardware"), ("avx2 avx512_bf16", "in hardware")])
def test_the_features_decide_what_is_said_of_bfloat16(monkeypatch, tmp_path, flags, said):
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {flags}\n")
    monkeypatch.setattr(doctor.device, "CPU_INFO", info)
    found, used = doctor.processor()
    assert all(flag in found for flag in flags.split()) and said in used


@pytest.mark.parametrize(("count", "advice"), [(1, "equally near"), (4, "--ranks 4.*numactl --interleave=all")])
def test_several_sockets_have_a_command(monkeypatch, tmp_path, count, advice):
    for node in range(count):
        (tmp_path / f"node{node}").mkdir()
    monkeypatch.setattr(doctor, "NUMA_NODES", tmp_path)
    found, used = doctor.sockets()
    assert found.startswith(f"{count} NUMA node")
    assert re.search(advice, used)


def test_huge_pages_that_are_off_are_told_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "HUGE_PAGES", tmp_path / "enabled")
    assert doctor.huge_pages()[0] == "off"
    for setting, used in (("always [madvise] never", "huge pages for"), ("always madvise [never]", "small pages")):
        (tmp_path / "enabled").write_text(setting)
        assert used in doctor.huge_pages()[1]
