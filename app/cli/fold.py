"""`python -m app bundle fold`: merge a delta (a bundle with changed rows only) and the bundles that it builds on into
one whole bundle. `python -m app.cli.fold` does the same where MindSpore is not installed.
"""

from __future__ import annotations

from common.signals import die_quietly

# From here on, Ctrl-C ends the process silently. During the imports below, which take a moment, it would otherwise
# print a traceback.
if __name__ == "__main__":
    die_quietly()

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from app.cli import bundle
from app.cli.predict import main
from app.scoring.bundle_writer import fold
from common.arguments import add_shared
from common.process import die_with_parent
from common.text import show


def add_parser(commands: Any) -> None:
    """Add the command `bundle` with all its subcommands to the parser of `python -m app`.

    This function is not part of the module `app.cli.bundle`, because bundles contain a copy of that module but not the
    code of `fold`.
    """
    subcommands = bundle.add_arguments(commands.add_parser("bundle", help="verify a bundle, or explain its scores"))
    summary = "write a delta and the bundles that it needs as one whole bundle"
    add_arguments(subcommands.add_parser("fold", help=summary))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command `fold` to `parser`."""
    add_shared(parser, "bundle", metavar="DELTA", help="bundle that holds the changes since another")
    parser.add_argument("output", type=Path, metavar="BUNDLE", help="the new folder")
    add_shared(parser, "--overwrite", help="replace an existing bundle")
    # The HTTP service passes this option when it starts this command to merge its bundles, so that the command ends
    # with the service.
    parser.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: write the whole bundle, print its size, and return the exit status."""
    if arguments.end_with_parent:
        die_with_parent(signal.SIGTERM)
    manifest = fold(arguments.bundle, arguments.output, arguments.overwrite)
    show(f"{arguments.output}: {manifest.rows['num_rows']:,} rows, generation {manifest.generation}")
    return 0


if __name__ == "__main__":
    sys.exit(main(add_arguments, __spec__.name))
