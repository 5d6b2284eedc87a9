"""Record what a program does to a folder with strace, and replay what a power cut at any moment can leave of it.

The file system is modelled as follows. Data is safe once its file was synced. The change of a name (made, renamed or
removed) is safe once its folder was synced. Before that, each change may survive or be lost, independently of later
changes. A rename is atomic. If a write is lost, later parts of the file may survive, with zeros in its place.
"""

import os
import re
import subprocess
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tests.programs import run_program

DATA_CALLS = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fsync", "fdatasync", "lseek")
NAME_CALLS = ("open", "openat", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat")
# Calls that the model does not cover. If a program uses one of them on the watched folder, the recording fails.
UNKNOWN_CALLS = ("truncate", "fallocate", "sendfile", "copy_file_range", "splice", "link", "linkat", "symlink")
UNKNOWN_CALLS += ("symlinkat", "sync_file_range", "mmap")
ALWAYS_UNKNOWN = ("sync", "syncfs", "io_uring_setup", "openat2", "fchdir")
TRACED = ",".join((*DATA_CALLS, *NAME_CALLS, "rmdir", "chdir", *UNKNOWN_CALLS, *ALWAYS_UNKNOWN))
MOST_BYTES_OF_A_CALL = 16 << 20

CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)(?:<([^>]*)>)?.*", re.DOTALL)
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<([^>]*)>(\(deleted\))?")
Tree = dict[str, bytes | None]  # content by path; None for a folder
ROOT = 0


def can_record() -> bool:
    """Return True if strace is installed and may trace processes."""
    try:
        return subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Operation:
    """A change of the watched folder. `kind` is write, truncate, sync, make, remove or rename.

    `inode` is the number of the file (write, truncate), of the file or folder (sync), or of the folder that holds
    `name` (make, remove, rename).
    """

    kind: str
    inode: int
    name: str = ""
    made: int = 0  # For make: the number of the new file or folder.
    to: tuple[int, str] = (0, "")
    offset: int = 0  # For write: offset of the data in the file. For truncate: the new length.
    data: bytes = b""

    @property
    def folders(self) -> tuple[int, ...]:
        """The folders that a change of a name concerns. It is safe once one of them was synced."""
        return {"make": (self.inode,), "remove": (self.inode,), "rename": (self.inode, self.to[0])}.get(self.kind, ())


def apply_name(folders: dict[int, dict[str, int]], operation: Operation) -> None:
    """Apply an operation to the names in `folders`. Do nothing if it is impossible because an earlier one was lost."""
    names = folders[operation.inode]
    if operation.kind == "make":
        names.setdefault(operation.name, operation.made)
    elif operation.kind == "remove":
        names.pop(operation.name, None)
    elif operation.name in names:
        to, to_name = operation.to
        if not folders.get(folders[to].get(to_name, -1)):
            folders[to][to_name] = names.pop(operation.name)


def _text(hexadecimal: str) -> str:
    return os.fsdecode(_bytes(hexadecimal))


def _bytes(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal.replace("\\x", ""))


class Recording:
    """The operations of a program on the folder `root`, and what the folder contained before the program started."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.operations: list[Operation] = []
        self._cwds: dict[str, Path] = {}  # Working directories of the processes that have changed theirs.
        self._folders: dict[int, dict[str, int]] = {ROOT: {}}  # Names in each folder now, in removed folders too.
        self._initial: dict[int, bytes] = {}
        self._offsets: dict[tuple[int, int], int] = {}  # Position by descriptor and file. -1: writes append.
        self._changes: dict[int, list[int]] = {}  # For each file, the numbers of the operations on its data.
        self._cache: dict[Hashable, tuple[str, bytes]] = {}
        self._add_folder(ROOT, self.root)
        self._names_before = {inode: dict(names) for inode, names in self._folders.items()}

    def _new_inode(self) -> int:
        return len(self._folders) + len(self._initial)

    def _add_folder(self, inode: int, path: Path) -> None:
        for entry in sorted(path.iterdir()):
            self._folders[inode][entry.name] = made = self._new_inode()
            if entry.is_dir():
                self._folders[made] = {}
                self._add_folder(made, entry)
            else:
                self._initial[made] = entry.read_bytes()

    # Reading strace's lines

    def read(self, trace: Path) -> None:
        """Read the output of `strace -f -y -xx`. Calls have the order in which they ended."""
        begun: dict[str, str] = {}
        for line in trace.read_text(encoding="ascii").splitlines():
            pid, text = line.split(maxsplit=1)
            if text.endswith(" <unfinished ...>"):
                begun[pid] = text.removesuffix(" <unfinished ...>")
                continue
            if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
                text = begun.pop(pid) + text[resumed.end() :]
            found = CALL.fullmatch(text)
            if found and not found[3].startswith("-"):
                self._take(pid, found[1], found[2], int(found[3], 0), found[4])

    def _take(self, pid: str, call: str, words: str, result: int, opened: str | None) -> None:
        assert call not in ALWAYS_UNKNOWN, f"not in the model: {call}({words})"
        cwd = self._cwds.get(pid, self.root)
        if call == "chdir":
            self._cwds[pid] = cwd / _text(words.strip('"'))
        elif call in UNKNOWN_CALLS:
            shared = call != "mmap" or ("MAP_SHARED" in words and "PROT_WRITE" in words)
            places = [
                _text(found[2]) for found in DESCRIPTOR.finditer(words) if found[1] != "AT_FDCWD" and not found[3]
            ]
            places += [str(cwd / _text(found[1])) for found in STRING.finditer(words)]
            inside = [place for place in places if Path(place).is_relative_to(self.root)]
            assert not shared or not inside, f"not in the model: {call} of {inside}"
        elif call in DATA_CALLS:
            self._take_data(call, words, result)
        elif call in ("open", "openat", "creat"):
            assert opened is not None
            self._open(_text(opened), words if call != "creat" else "O_CREAT|O_TRUNC", result)
        else:
            self._take_name(call, words, cwd)

    def _take_data(self, call: str, words: str, result: int) -> None:
        descriptor = DESCRIPTOR.match(words)
        if descriptor is None or descriptor[3] or (inode := self._find(_text(descriptor[2]))) is None:
            return
        key = int(descriptor[1]), inode
        if call in ("fsync", "fdatasync"):
            self._add(Operation("sync", inode))
        elif call == "lseek":
            if self._offsets.get(key) != -1:
                self._offsets[key] = result
        elif call == "ftruncate":
            self._add(Operation("truncate", inode, offset=int(words.rsplit(",", 1)[1])))
        else:
            parts = list(STRING.finditer(words))
            assert not any(part[2] for part in parts), "a write is longer than what strace notes of it"
            data = _bytes("".join(part[1] for part in parts))[:result]
            start = int(words.rsplit(",", 1)[1]) if call.startswith("p") else self._offsets[key]
            if not call.startswith("p") and start != -1:
                self._offsets[key] += result
            self._add(Operation("write", inode, offset=start if start != -1 else self._size(inode), data=data))

    def _open(self, place: str, flags: str, descriptor: int) -> None:
        parent, inode = self._find(str(Path(place).parent)), self._find(place)
        if (parent is None and inode is None) or "O_TMPFILE" in flags:  # a file without a name leaves nothing
            return
        if inode is None:
            inode = self._new_inode()
            self._initial[inode] = b""
            self._add(Operation("make", parent, Path(place).name, made=inode))
        elif "O_TRUNC" in flags and self._size(inode):
            self._add(Operation("truncate", inode))
        self._offsets[descriptor, inode] = -1 if "O_APPEND" in flags else 0

    def _take_name(self, call: str, words: str, cwd: Path) -> None:
        folders = [_text(found[2]) for found in DESCRIPTOR.finditer(words)] or [str(cwd)] * 2
        names = [_text(found[1]) for found in STRING.finditer(words)]
        places = [os.path.normpath(Path(*pair)) for pair in zip(folders, names, strict=False)]
        parents = [self._find(str(Path(place).parent)) for place in places]
        if parents == [None] * len(places):
            return
        assert None not in parents and "RENAME_EXCHANGE" not in words, f"not in the model: {call} of {places}"
        name = Path(places[0]).name
        if call in ("mkdir", "mkdirat"):
            inode = self._new_inode()
            self._folders[inode], self._names_before[inode] = {}, {}
            self._add(Operation("make", parents[0], name, made=inode))
        elif call.startswith("rename"):
            self._add(Operation("rename", parents[0], name, to=(parents[1], Path(places[1]).name)))
        else:
            self._add(Operation("remove", parents[0], name))

    def _find(self, place: str) -> int | None:
        """Return the number of the file or folder that has this path now. Return None for a path outside of the watched
        folder, or if nothing has this path.
        """
        path = Path(place)
        if not path.is_relative_to(self.root):
            return None
        inode: int | None = ROOT
        for name in path.relative_to(self.root).parts:
            inode = self._folders.get(inode, {}).get(name)
        return inode

    def _add(self, operation: Operation) -> None:
        if operation.kind in ("write", "truncate"):
            self._changes.setdefault(operation.inode, []).append(len(self.operations))
        elif operation.kind != "sync":
            apply_name(self._folders, operation)
        self.operations.append(operation)

    def _size(self, inode: int) -> int:
        return len(self._content(inode, len(self.operations), {})[1])

    # What a power cut leaves

    def states(
        self, first: int = 0, promise: Callable[[int], Hashable] = lambda _: None, unread: str = "(?!)"
    ) -> Iterator[tuple[int, str, Tree]]:
        """Yield each state of the folder that a power cut after at least `first` operations can leave.

        Yield the number of operations that had begun, a text that says which of them are lost, and the files of the
        state. Equal states are yielded only once for each value of `promise(number of operations)`. Files whose paths
        match `unread` are not compared.
        """
        seen = set()
        for count in range(first, len(self.operations) + 1):
            for what, lost in self._losses(count):
                tree = self._tree(count, lost)
                key = (
                    promise(count),
                    frozenset((path, digest) for path, (digest, _) in tree.items() if not re.search(unread, path)),
                )
                if key not in seen:
                    seen.add(key)
                    yield count, what, {path: None if not digest else data for path, (digest, data) in tree.items()}

    def _losses(self, count: int) -> Iterator[tuple[str, dict[int, str]]]:
        """Yield what may happen to the unsynced ones of the first `count` operations: a text, and the fate (lost, zeros
        or torn) by the number of the operation. After a rename, each write is also lost alone.
        """
        data, names = self._unsynced(count)
        yield "nothing", {}
        yield "unsynced data", dict.fromkeys(data, "lost")
        yield "unsynced names", dict.fromkeys(names, "lost")
        yield "all that is not synced", dict.fromkeys((*data, *names), "lost")
        yield "unsynced data, but sizes", dict.fromkeys(data, "zeros")
        if data:
            yield f"half of operation {data[-1]}", {data[-1]: "torn"}
        if count == len(self.operations) or self.operations[count - 1].kind == "rename":  # what makes things count
            for number in data:
                yield f"operation {number}", {number: "lost"}
        for number in names:
            yield f"operation {number}", {number: "lost"}

    def _unsynced(self, count: int) -> tuple[list[int], list[int]]:
        data: list[int] = []
        names: list[int] = []
        for number, operation in enumerate(self.operations[:count]):
            if operation.kind == "sync":
                data = [n for n in data if self.operations[n].inode != operation.inode]
                names = [n for n in names if operation.inode not in self.operations[n].folders]
            else:
                (data if operation.kind in ("write", "truncate") else names).append(number)
        return data, names

    def _tree(self, count: int, lost: dict[int, str]) -> dict[str, tuple[str, bytes]]:
        """Return digest and content of each path after `count` operations, of which `lost` have these fates. Both are
        empty for a folder.
        """
        folders = {inode: dict(names) for inode, names in self._names_before.items()}
        for number, operation in enumerate(self.operations[:count]):
            if operation.folders and number not in lost:
                apply_name(folders, operation)
        tree: dict[str, tuple[str, bytes]] = {}

        def walk(inode: int, before: str) -> None:
            for name, entry in folders[inode].items():
                tree[before + name] = ("", b"") if entry in folders else self._content(entry, count, lost)
                if entry in folders:
                    walk(entry, f"{before}{name}/")

        walk(ROOT, "")
        return tree

    def _content(self, inode: int, count: int, lost: dict[int, str]) -> tuple[str, bytes]:
        kept = [(n, lost.get(n, "")) for n in self._changes.get(inode, ()) if n < count and lost.get(n) != "lost"]
        key = inode, tuple(kept)
        if key not in self._cache:
            content = bytearray(self._initial[inode])
            for number, fate in kept:
                operation = self.operations[number]
                data, end = operation.data, operation.offset
                if operation.kind == "truncate":
                    content[end:] = bytes(max(end - len(content), 0))
                    continue
                data = {"": data, "zeros": bytes(len(data)), "torn": data[: len(data) // 2]}[fate]
                content.extend(bytes(max(end - len(content), 0)))
                content[end : end + len(data)] = data
            self._cache[key] = f"{len(content)}:{xxhash.xxh3_64_hexdigest(content)}", bytes(content)
        return self._cache[key]

    def check(self) -> None:
        """Raise AssertionError unless replaying all operations gives the files that the program has left. Otherwise the
        model has missed something.
        """
        replayed = next(tree for _, _, tree in self.states(len(self.operations)))
        real = {str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else None for path in self._all()}
        wrong = {path for path in {*replayed, *real} if replayed.get(path, "") != real.get(path, "")}
        assert not wrong, f"not as the program left it: {sorted(wrong)}"

    def _all(self) -> Iterator[Path]:
        return self.root.rglob("*")

    def put(self, tree: Tree) -> None:
        """Write the files of a state into the folder, which must be empty."""
        for path, content in tree.items():
            if content is None:
                (self.root / path).mkdir()
            else:
                (self.root / path).write_bytes(content)


def record(command: list[str], root: Path, trace: Path, env: dict[str, str] | None = None) -> Recording:
    """Run a command in the folder `root`, check that it succeeds, and return what it did there. `trace` is the file for
    strace's output.
    """
    recording = Recording(root)
    words = ["strace", "-f", "-y", "-xx", "--seccomp-bpf", "-s", str(MOST_BYTES_OF_A_CALL), "-o", str(trace)]
    run_program(*words, "-e", f"trace={TRACED}", *command, cwd=root, env=env)
    recording.read(trace)
    recording.check()
    return recording
