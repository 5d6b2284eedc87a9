"""The modules that a bundle carries."""

from dataclasses import replace

from markdown_it import MarkdownIt

from app.scoring.bundle_folder import read_manifest
from app.scoring.trained.code_and_card import CODE_ROOTS, PROJECT, code_files, texts
from benchmarks.house import code_lines
from common.settings import as_dict
from data_prep.prepared.schema import VectorField
from tests.app.scoring.conftest import make_bundle, tiny_bundle, tiny_state  # noqa: F401 (fixtures)


def test_a_bundle_carries_what_scores_and_nothing_else():
    files = code_files(CODE_ROOTS)
    packages = {"/".join(path.relative_to(PROJECT).parts[:2]) for path in files}
    assert packages >= {"app/scoring", "data_prep/encoding", "data_prep/kernels", "data_prep/raw_log"}
    assert not [path for path in files if "trained" in path.parts]
    others = {"config", "distributed", "model", "run", "serving", "training"}
    assert not packages & {f"app/{name}" for name in others}
    assert not packages & {f"data_prep/{name}" for name in ("checks", "pipeline", "report", "sources", "statistics")}
    assert len(files) <= 59
    assert code_lines(files) < 8_450  # The code reads logs of every format.


MARKUP = "<img src=x onerror=alert(1)>[a](javascript:b) *c* `d`\x1b[2J\n# e"


def test_names_are_no_markup(tiny_bundle, tiny_schema, tiny_config):  # noqa: F811
    columns = {"click": "label", MARKUP: "string", "\n````\n<script>": "string"}
    options = {**tiny_schema.options, "data": {**tiny_schema.options["data"], "columns": columns}}
    schema = replace(tiny_schema, source={**tiny_schema.source, "name": MARKUP}, options=options)
    schemas = (replace(each, vectors=(VectorField(name, 2, "norm", (0, 0), (1, 1)),))
               for each, name in ((schema, MARKUP), (tiny_schema, "item")))  # fmt: skip
    found, expected = (
        MarkdownIt("commonmark").parse(
            texts(read_manifest(tiny_bundle), as_dict(tiny_config()), each, None, table_bytes=1)["README.md"]
        )
        for each in schemas
    )
    kinds = [[(token.type, [each.type for each in token.children or ()]) for token in of] for of in (found, expected)]
    assert kinds[0] == kinds[1]
    shown = "".join(each.content for token in found for each in token.children or ())
    assert f"vector {MARKUP}"[:40] in shown
    assert f"Scores raw rows of {MARKUP}".replace("\x1b", "\\x1b").replace("\n", "\\n")[:60] in shown
