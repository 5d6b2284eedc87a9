"""Random changes to a folder of bundles, and a small model (`Model`) that says which version a service must then serve.

The model only follows what was done to the folder. It reads neither manifests nor serial numbers. `test_statement`
compares it with the code that watches the folder, in one process, and `test_life` with a service of several processes.
"""

import json
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from app.scoring import bundle_folder, bundle_writer

# Changes of a manifest (whose checksum is then adapted) after which no service may serve the bundle. None stands for a
# key that is removed.
ODD_CHANGES = [
    {"unknown": 1}, {"files": []}, {"files": {"lookup.bin": {}}}, {"files": None}, {"rows": None}, {"rows": 7},
    {"parent": {}}, {"parent": {"id": 1, "name": []}}, {"parent": "7"}, {"generation": "1"}, {"serial": None, "id": 5},
    {"model": None}, {"versions": [1]}, {"checkpoint": 3.5}, {"format_version": 999}, {"format": "another"},
]  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A model that was exported."""

    id: str
    # Serial number of the chain's whole bundle, number of deltas since, and serial number of this version's own bundle.
    age: tuple[int, int, int]
    parent: str | None


@dataclass
class Copy:
    """A folder that holds the bundle of a version. `is_whole` is False for a delta."""

    version: str
    is_whole: bool
    # For each file that is damaged, or not there yet: the content that it should have.
    bad: dict[str, bytes | None] = field(default_factory=dict)


@dataclass
class Model:
    """Model of the folder: which versions and copies exist, and which of them must be served."""

    versions: dict[str, Version] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)  # by name of folder
    pinned: str | None = None

    def available(self) -> set[str]:
        """Return the versions that can be opened: the folder has an undamaged copy of each bundle of their chain."""
        good = [copy for copy in self.copies.values() if not copy.bad]
        found, more = set(), {copy.version for copy in good if copy.is_whole}
        while more:
            found |= more
            more = {c.version for c in good if self.versions[c.version].parent in found and c.version not in found}
        return found

    def age(self, version):
        return self.versions[version].age

    def must_serve(self, serving):
        """Return the version that must serve next if `serving` serves now (None at the start), or None if none can
        serve.
        """
        there = self.available()
        if self.pinned is not None:
            return self.pinned if self.pinned in there else serving
        return max(there | ({serving} - {None}), key=self.age, default=None)

    def older(self, version):
        """Return the versions to which a roll-back from `version` may go, the newest first."""
        return sorted((v for v in self.available() if self.age(v) < self.age(version)), key=self.age, reverse=True)


class Life:
    """Changes the folder, and records each change in the model.

    `make` writes the files of a bundle. `look` is called in the middle of changes, so that a watcher can look at the
    folder meanwhile. The argument `draw` of the methods is a random generator.
    """

    def __init__(self, folder: Path, make, look=lambda: None):
        self.folder, self.model, self._make, self._look = folder, Model(), make, look
        self._aside = folder.with_name("aside")  # Folder for bundles that are then copied into `folder`.
        self._aside.mkdir()
        # `_names`: how many names were given. `clock_ms`: the clock of the machine that exports bundles.
        self._names, self.clock_ms = 0, 10**12
        self.odd_names = set()

    def name(self, draw):
        """Return a new name for a copy, which may sort before or after the existing names."""
        self._names += 1
        return draw.choice(
            [f"{self._names}", f"{99_999 - self._names}", f"model-{self._names}", f"{self._names}-folded"]
        )

    def good(self):
        """Return the names of the copies whose chain the export and fold commands can open. Versions of which any copy
        is damaged are left out, because a command may choose that copy for a parent.
        """
        copies, there = self.model.copies, self.model.available()
        bad = {copy.version for copy in copies.values() if copy.bad}

        def can_be_opened(copy):
            parent = None if copy.is_whole else self.model.versions[copy.version].parent
            while parent in there - bad:
                parent = self.model.versions[parent].parent
            return parent is None and copy.version not in bad

        return sorted(name for name, copy in copies.items() if can_be_opened(copy))

    def _numbers(self):
        """Return the serial numbers that the copies in the folder have, except copies with a damaged manifest."""
        return [self.model.age(c.version)[2] for c in self.model.copies.values() if bundle_folder.MANIFEST not in c.bad]

    def _export(self, output, parent=None):
        self.clock_ms += 1
        known = {version.age[2] for version in self.model.versions.values()}
        while (number := max(self.clock_ms, 1 + max(self._numbers(), default=0))) in known:
            self.clock_ms = number + 1  # Do not give a number again that a removed bundle had.
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
        """Export a whole bundle into the folder."""
        name = self.name(draw)
        self.model.copies[name] = self._export(self.folder / name)

    def delta(self, draw):
        """Export a delta whose parent is a version that can be opened, mostly the newest one."""
        names = sorted(self.good(), key=lambda name: self.model.age(self.model.copies[name].version))
        if not names:
            return
        parent = names[-1] if draw.random() < 0.7 else draw.choice(names)
        name = self.name(draw)
        self.model.copies[name] = self._export(self.folder / name, self.folder / parent)

    def copy_by_file(self, draw):
        """Export a bundle elsewhere and copy it into the folder file by file, in random order, each file in two halves.
        The copy may end before the last file.
        """
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
        """Return the names of the copies that are complete and undamaged, deltas too."""
        return sorted(name for name, copy in self.model.copies.items() if not copy.bad)

    def redeploy(self, draw):
        """Copy an undamaged bundle of the folder under another name."""
        if self.whole():
            source, name = draw.choice(self.whole()), self.name(draw)
            shutil.copytree(self.folder / source, self.folder / f".{name}")
            (self.folder / f".{name}").rename(self.folder / name)
            self.model.copies[name] = Copy(self.model.copies[source].version, self.model.copies[source].is_whole)

    def rename(self, draw):
        """Rename a copy."""
        if self.model.copies:
            old, name = draw.choice(sorted(self.model.copies)), self.name(draw)
            (self.folder / old).rename(self.folder / name)
            self.model.copies[name] = self.model.copies.pop(old)

    def delete(self, draw):
        """Delete a copy."""
        if self.model.copies:
            name = draw.choice(sorted(self.model.copies))
            shutil.rmtree(self.folder / name)
            del self.model.copies[name]

    def damage(self, draw, how=None):
        """Damage a file of an undamaged copy: cut it, change a byte, or remove it.

        The file is replaced by a new one, because the model that serves has mapped the old file into memory.
        """
        if self.whole():
            name = draw.choice(self.whole())
            files = sorted(path for path in (self.folder / name).iterdir() if path.is_file())
            path = draw.choice(files)
            content = path.read_bytes()
            how = how or draw.choice(["cut", "changed", "gone"])
            # A changed byte of the tables would be found only when a row of its block is looked up.
            if how == "changed" and path.name == bundle_folder.TABLES:
                how = "cut"
            self.model.copies[name].bad[path.name] = content
            path.unlink()
            if how == "unreadable":
                path.symlink_to(path.name)  # A link to itself cannot be read even by root.
            elif how != "gone":
                place = len(content) // 2
                changed = (
                    content[:place]
                    if how == "cut"
                    else content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
                )
                path.write_bytes(changed)

    def put_odd(self, draw):
        """Add a bundle whose manifest has a wrong value (one of ODD_CHANGES) but the right checksum, or delete such a
        bundle.
        """
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
        """Replace a file of a copy by a link to itself, which no user can open."""
        self.damage(draw, "unreadable")

    def repair(self, draw):
        """Restore the missing and damaged files of a copy. Other files, such as an undamaged manifest, stay
        untouched.
        """
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
        """Merge a delta and its parents into a whole bundle in the folder, as the command `fold` does."""
        names = [name for name in self.good() if not self.model.copies[name].is_whole]
        if names:
            name = self.name(draw)
            self.folded(draw.choice(names), name, fold)

    def folded(self, delta, name, fold):
        """Merge the chain of `delta` into the whole bundle `name` by calling `fold`, and record it in the model."""
        fold(self.folder / delta, self.folder / name)
        self.model.copies[name] = Copy(self.model.copies[delta].version, is_whole=True)


def seeded(number):
    return random.Random(number)
