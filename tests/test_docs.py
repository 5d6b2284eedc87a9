"""The docs name only files, commands and settings that exist, and stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config.config import Config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
PAGES += ROOT.glob("examples/*/README.md")
MAKEFILE = (ROOT / "Makefile").read_text()
FOLDERS = "app|data_prep|common|configs|scripts|benchmarks|tests|docs|examples"
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@pages
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in link]
    files = re.findall(rf"(?:^|[\s`(])((?:{FOLDERS})/[\w./-]*\w)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [file for file in files if not (ROOT / file).exists()] == []


@pages
def test_commands_exist(page: Path) -> None:
    text = page.read_text()
    commands = "\n".join(
        "".join(found) for found in re.findall(r"(?s)```\w*\n(.*?)```|`([^`\n]+)`|\n {4}([^\n]+)", text)
    )
    targets = re.findall(r"(?m)(?:^|&& )make ([a-z-]+)", commands)
    modules = re.findall(rf"-m ((?:{FOLDERS})[.\w]*)", commands)
    assert [target for target in targets if not re.search(rf"(?m)^{target}:", MAKEFILE)] == []
    assert [module for module in modules if not _is_module(module)] == []


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pages
def test_settings_exist(page: Path) -> None:
    known = _settings()
    sections = "|".join(sorted({name.split(".")[0] for name in known}))
    named = re.findall(rf"(?<![\w./])((?:{sections})\.[a-z_0-9]+(?:\.[a-z_0-9]+)*)(?![\w/.(])", page.read_text())
    named = [name for name in named if not name.endswith((".txt", ".txt.gz", ".log", ".md", ".py", ".safetensors"))]
    if page.name == "CHANGELOG.md":
        known |= set(Config.REMOVED)
    known |= {name.rpartition(".")[0] for name in known}  # sections
    known |= {f"{group}_optimizer.{key}" for group in ("wide", "deep", "tower") for key in _OPTIMIZER_KEYS}
    assert [name for name in named if name not in known] == []


_OPTIMIZER_KEYS = ("l2", "learning_rate", "schedule.name")  # the page lists them once for all optimizers


def _settings() -> set[str]:
    return set(re.findall(r"(?m)^\| `([a-z_0-9.]+)`", (ROOT / "docs/configuration.md").read_text()))


def test_readme_and_design_are_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert len((ROOT / "docs/internals/DESIGN.md").read_text().splitlines()) <= 250
    paragraphs = re.split(r"\n\n|\n(?=- |\|)", re.sub(r"(?s)```.*?```", "", readme))
    assert [paragraph for paragraph in paragraphs if paragraph.count("\n") > 5] == []
