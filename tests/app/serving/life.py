"""A folder of bundles to which random things happen, and a small model of what must be served.

The model knows what was done, and neither manifests nor serial numbers. `test_statement` holds the watching to it in
one process, `test_life` a service of several processes.
"""

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from app.scoring import bundle_folder, bundle_writer

# Changes of a manifest, with its checksum, after which no service may take the bundle. None removes the key.
ODD_CHANGES = [
    {"unknown": 1}, {"files": []}, {"files": {"lookup.bin": {}}}, {"files": None}, {"rows": None}, {"rows": 7},
    {"parent": {}}, {"parent": {"id": 1, "name": []}}, {"parent": "7"}, {"generation": "1"}, {"serial": None, "id": 5},
    {"model": None}, {"versions": [1]}, {"checkpoint": 3.5}, {"format_version": 999}, {"format": "another"},
]  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A model that was exported."""

    id: str
    age: tuple[int, int, int]  # number of its whole bundle, of deltas since, of its own
    parent: str | None


@dataclass
class Copy:
    """A folder with a version."""

    version: str
    is_whole: bool
    bad: dict[str, bytes | None] = field(default_factory=dict)  # content of the files that are damaged or not there yet


@dataclass
class Model:
    """Model of the folder: which versions and copies exist, and which of them must be served."""

    versions: dict[str, Version] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)  # by name of folder
    pinned: str | None = None

    def available(self) -> set[str]:
        """Versions of which every bundle is here and whole."""
        good = [copy for copy in self.copies.values() if not copy.bad]
        found, more = set(), {copy.version for copy in good if copy.is_whole}
        while more:
            found |= more
            more = {c.version for c in good if self.versions[c.version].parent in found and c.version not in found}
        return found

    def age(self, version):
        return self.versions[version].age

    def must_serve(self, serving):
        """The version that must serve where `serving` (None at a start) does; None if nothing can."""
        there = self.available()
        if self.pinned is not None:
            return self.pinned if self.pinned in there else serving
        return max(there | ({serving} - {None}), key=self.age, default=None)

    def older(self, version):
        """Versions that a roll-back from `version` may pin, the best first."""
        return sorted((v for v in self.available() if self.age(v) < self.age(version)), key=self.age, reverse=True)


class Life:
    """Does things to the folder, and tells the model. `make` writes a bundle's files; `look` is called in the midst."""

    def __init__(self, folder: Path, make, look=lambda: None):
        self.folder, self.model, self._make, self._look = folder, Model(), make, look
        self._aside = folder.with_name("aside")  # bundles before they are copied
        self._aside.mkdir()
        self._names, self.clock_ms = 0, 10**12  # the time where bundles are exported
        self.odd_names = set()

    def name(self, draw):
        """A new name, before or behind those that are there."""
        self._names += 1
        return draw.choice(
            [f"{self._names}", f"{99_999 - self._names}", f"model-{self._names}", f"{self._names}-folded"]
        )

    def good(self):
        """Names of the copies of which a command can make more: it takes the first copy of a parent, be that bad."""
        copies, there = self.model.copies, self.model.available()
        bad = {copy.version for copy in copies.values() if copy.bad}

        def can_be_opened(copy):
            parent = None if copy.is_whole else self.model.versions[copy.version].parent
            while parent in there - bad:
                parent = self.model.versions[parent].parent
            return parent is None and copy.version not in bad

        return sorted(name for name, copy in copies.items() if can_be_opened(copy))

    def _numbers(self):
        """Numbers of the copies beside a new one."""
        return [self.model.age(c.version)[2] for c in self.model.copies.values() if bundle_folder.MANIFEST not in c.bad]

    def _export(self, output, parent=None):
        self.clock_ms += 1
        known = {version.age[2] for version in self.model.versions.values()}
        while (number := max(self.clock_ms, 1 + max(self._numbers(), default=0))) in known:
            self.clock_ms = number + 1  # no two bundles of one millisecond, of which one is gone
        with bundle_writer.new_bundle(output, overwrite=False) as partial:
            self._look()
            self._make(partial, parent, self.folder)
            self._look()
        manifest = bundle_folder.read_manifest(output)
        if parent is None:
            version = Version(manifest.version, (number, 0, number), None)
        else:
            before = self.model.versions[bundle_folder.read_manifest(parent).version]
            version = Version(manifest.version, (before.age[0], before.age[1] + 1, number), before.id)
        self.model.versions[version.id] = version
        return Copy(version.id, parent is None)

    def export(self, draw):
        """A whole bundle."""
        name = self.name(draw)
        self.model.copies[name] = self._export(self.folder / name)

    def delta(self, draw):
        """Changes of a version that can be opened, mostly the newest."""
        names = sorted(self.good(), key=lambda name: self.model.age(self.model.copies[name].version))
        if not names:
            return
        parent = names[-1] if draw.random() < 0.7 else draw.choice(names)
        name = self.name(draw)
        self.model.copies[name] = self._export(self.folder / name, self.folder / parent)

    def copy_by_file(self, draw):
        """A bundle that was made elsewhere comes file by file, in any order, each in halves; may stop in the midst."""
        name, source = self.name(draw), self._aside / "bundle"
        names = self.good()
        parent = self.folder / draw.choice(names) if names and draw.random() < 0.5 else None
        copy = self._export(source, parent)
        files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        draw.shuffle(files)
        copy.bad = {str(file): (source / file).read_bytes() for file in files}
        self.model.copies[name] = copy
        num_files = draw.choice([len(files), len(files), draw.randrange(len(files))])
        for file in files[:num_files]:
            target = self.folder / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            content = copy.bad[str(file)]
            target.write_bytes(content[: len(content) // 2])
            self._look()
            target.write_bytes(content)
            del copy.bad[str(file)]
            if draw.random() < 0.3:
                self._look()
        (self.folder / name).mkdir(exist_ok=True)
        shutil.rmtree(source)

    def whole(self):
        """Names of the copies that are not damaged."""
        return sorted(name for name, copy in self.model.copies.items() if not copy.bad)

    def redeploy(self, draw):
        """The copy of a copy, under another name."""
        if self.whole():
            source, name = draw.choice(self.whole()), self.name(draw)
            shutil.copytree(self.folder / source, self.folder / f".{name}")
            (self.folder / f".{name}").rename(self.folder / name)
            self.model.copies[name] = Copy(self.model.copies[source].version, self.model.copies[source].is_whole)

    def rename(self, draw):
        """Another name."""
        if self.model.copies:
            old, name = draw.choice(sorted(self.model.copies)), self.name(draw)
            (self.folder / old).rename(self.folder / name)
            self.model.copies[name] = self.model.copies.pop(old)

    def delete(self, draw):
        """A folder goes, mostly one that is not needed."""
        if self.model.copies:
            name = draw.choice(sorted(self.model.copies))
            shutil.rmtree(self.folder / name)
            del self.model.copies[name]

    def damage(self, draw, how=None):
        """A file is cut, changed or gone. It is replaced, as what serves has mapped the old one."""
        if self.whole():
            name = draw.choice(self.whole())
            files = sorted(path for path in (self.folder / name).iterdir() if path.is_file())
            path = draw.choice(files)
            content = path.read_bytes()
            how = how or draw.choice(["cut", "changed", "gone"])
            if how == "changed" and path.name == bundle_folder.TABLES:  # of which only blocks that are touched are read
                how = "cut"
            self.model.copies[name].bad[path.name] = content
            path.unlink()
            if how == "unreadable":
                path.symlink_to(path.name)  # to itself: as root, any other file can be read
            elif how != "gone":
                place = len(content) // 2
                changed = (
                    content[:place]
                    if how == "cut"
                    else content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
                )
                path.write_bytes(changed)

    def put_odd(self, draw):
        """A bundle comes whose manifest is odd, though its checksum is right, or an earlier one goes."""
        if self.odd_names and draw.random() < 0.3:
            name = draw.choice(sorted(self.odd_names))
            self.odd_names.remove(name)
            shutil.rmtree(self.folder / name)
        elif self.whole():
            source, name = draw.choice(self.whole()), self.name(draw)
            shutil.copytree(self.folder / source, self.folder / f".{name}")
            manifest, changes = self.folder / f".{name}" / bundle_folder.MANIFEST, draw.choice(ODD_CHANGES)
            content = json.loads(manifest.read_text()) | changes
            content = {key: value for key, value in content.items() if value is not None or key not in changes}
            del content["checksum"]
            manifest.write_text(json.dumps({**content, "checksum": bundle_folder.checksum_of(content)}))
            (self.folder / f".{name}").rename(self.folder / name)
            self.odd_names.add(name)

    def make_unreadable(self, draw):
        """A file that can be stat-ed by nobody."""
        self.damage(draw, "unreadable")

    def repair(self, draw):
        """Restore what is missing or damaged, and touch the manifest only if it was that."""
        bad = sorted(name for name, copy in self.model.copies.items() if copy.bad)
        if bad:
            name = draw.choice(bad)
            for file, content in self.model.copies[name].bad.items():
                path = self.folder / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_bytes(content)
            self.model.copies[name].bad = {}

    def fold(self, draw, fold=None):
        """A chain as a whole bundle, by hand."""
        names = [name for name in self.good() if not self.model.copies[name].is_whole]
        if names:
            name = self.name(draw)
            self.folded(draw.choice(names), name, fold)

    def folded(self, delta, name, fold):
        """Fold, and tell the model."""
        fold(self.folder / delta, self.folder / name)
        self.model.copies[name] = Copy(self.model.copies[delta].version, is_whole=True)


def seeded(number):
    return random.Random(number)
