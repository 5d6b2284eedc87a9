import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from common import settings, yaml_settings
from common.settings import Bounds, Removed, without_removed


@dataclass(frozen=True)
class Tower(settings.Checked):
    widths: Annotated[tuple[int, ...], Bounds(least=1, expected="widths of 1 or more")] = (64, 32)
    dropout: settings.Fraction = 0.0


@dataclass(frozen=True)
class Run(settings.Checked):
    name: str = "run"
    steps: settings.Count = 10
    seed: int | None = None
    shuffle: bool = True
    target: Literal["auto", "CPU"] = "auto"
    tower: Tower = field(default_factory=Tower)

    REMOVED: ClassVar = {"speed": Removed("all is fast"), "tower.scale": Removed("nothing is scaled", 1)}


def test_a_yaml_file_changes_defaults_and_arguments_change_both(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("steps: 20\ntower:\n  dropout: 0.5\n")
    run = yaml_settings.resolve(Run, path, ["tower.widths=[8, 4]", "steps=40", "steps=30"])
    assert run == Run(steps=30, tower=Tower(widths=(8, 4), dropout=0.5))


def test_an_empty_yaml_file_changes_nothing(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("# nothing yet\n")
    assert yaml_settings.resolve(Run, path) == Run()


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("steps=3", "steps", 3),
        ("seed=null", "seed", None),
        ("seed=3", "seed", 3),
        ("shuffle=false", "shuffle", False),
        ("name=5", "name", "5"),
        ("name=a=b", "name", "a=b"),
        ("target=CPU", "target", "CPU"),
        ("tower.dropout=1e-3", "tower", Tower(dropout=1e-3)),
        ("tower.dropout=0", "tower", Tower(dropout=0.0)),
        ("tower.widths=[1]", "tower", Tower(widths=(1,))),
        ("tower.widths=3", "tower", Tower(widths=(3,))),
    ],
)
def test_values_get_the_type_of_the_field(word, name, value):
    assert getattr(yaml_settings.resolve(Run, overrides=[word]), name) == value


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("step=3", r"argument 'step=3': unknown key 'step'; did you mean 'steps'\?"),
        ("tower.width=3", r"unknown key 'tower.width'; did you mean 'tower.widths'\?"),
        ("xyz=3", r"unknown key 'xyz'; known here: name, steps, seed, shuffle, target, tower"),
        ("steps", r"expected section.key=value"),
        ("=3", r"expected section.key=value"),
        ("steps=3.5", r"'steps' must be a whole number; found float 3.5"),
        ("steps=true", r"'steps' must be a whole number; found bool True"),
        ("steps=[", r"the value is not YAML"),
        ("tower={widths: [3], widths: [4]}", r"the value is not YAML: key 'widths' occurs twice"),
        ("tower={[1]: 2}", r"the value is not YAML: (?s:.*)found unhashable key"),
        ("seed=x", r"'seed' must be a whole number; found str 'x'"),
        ("shuffle=1", r"'shuffle' must be true or false; found int 1"),
        ("name=[a]", r"'name' must be text; found list"),
        ("target=GPU", r"'target' must be one of auto, CPU; found 'GPU'"),
        ("tower=3", r"'tower' is a section with keys, found int 3"),
        ("tower.dropout=true", r"'tower.dropout' must be a number; found bool True"),
        ("tower.dropout=high", r"'tower.dropout' must be a number; found str 'high'"),
        ("tower.widths=null", r"'tower.widths' must be a list such as \[64, 32\]; found NoneType None"),
        ("name=yes", r"'name' must be text \(YAML takes yes, no, on and off .* in quotes\); found bool True"),
        ("tower.widths=[3, x]", r"'tower.widths\[1\]' must be a whole number; found str 'x'"),
        ("steps=0", r"argument 'steps=0': steps must be 1 or more; found 0"),
        ("tower.dropout=1", r"argument 'tower.dropout=1': tower.dropout must be in \[0, 1\); found 1.0"),
        ("tower.dropout=.inf", r"tower.dropout must be in \[0, 1\), and finite; found inf"),
        ("tower.widths=[3, 0]", r"tower.widths must be widths of 1 or more; found \[3, 0\]"),
        ("speed=2", r"unknown key 'speed'; it was removed, so leave it out: all is fast"),
        ("tower.scale=1", r"unknown key 'tower\.scale'; it was removed, so leave it out: nothing is scaled"),
    ],
)
def test_wrong_keys_and_values_are_errors_that_name_them(word, message):
    with pytest.raises(ValueError, match=message):
        yaml_settings.resolve(Run, overrides=[word])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "expected sections with keys, found list"),
        ("a: [", "is not YAML"),
        ("? [1]\n: 2", "is not YAML: (?s:.*)found unhashable key"),
        ("step: 1", r"run.yaml: unknown key"),
    ],
)
def test_wrong_yaml_files_are_errors_that_name_them(tmp_path, content, message):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        yaml_settings.resolve(Run, path)


def test_a_missing_yaml_file_lists_those_that_are_there(tmp_path):
    (tmp_path / "tiny.yaml").touch()
    with pytest.raises(FileNotFoundError, match=r"no config file .*small.yaml.*: tiny.yaml"):
        yaml_settings.resolve(Run, tmp_path / "small.yaml")


def test_as_dict_gives_what_a_yaml_file_can_hold():
    plain: dict[str, Any] = settings.as_dict(Run())
    assert plain["tower"] == {"widths": [64, 32], "dropout": 0.0}
    assert settings.merge(Run(steps=99), plain, where="here") == Run()


def test_a_field_type_that_cannot_be_read_is_a_programming_error():
    with pytest.raises(TypeError, match=r"which settings\.py does not support"):
        settings.convert(1, complex, "here", "key")


@pytest.mark.parametrize(
    ("bounds", "said", "inside", "outside"),
    [
        (Bounds(least=1), "1 or more", [1, 1.5, 10**400], [0, -1, math.inf, math.nan]),
        (Bounds(above=0), "above 0", [5e-324, 3], [0, -0.0, -math.inf]),
        (Bounds(least=0, below=1), "in [0, 1)", [0, 0.999], [1, -1e-9, math.nan]),
        (Bounds(least=0, most=1), "in [0, 1]", [0, 1], [1.001, math.inf]),
        (Bounds(above=0, below=1), "in (0, 1)", [0.5], [0, 1]),
        (Bounds(least=1, expected="widths of 1 or more"), "widths of 1 or more", [(1,), (3, 2), None], [(), (2, 0)]),
    ],
)
def test_bounds(bounds, said, inside, outside):
    assert str(bounds) == said
    assert all(map(bounds.admit, inside)) and not any(map(bounds.admit, outside))


def test_a_file_of_configs_is_the_project_s_unless_there_is_one_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_project = yaml_settings.read_yaml(Path("configs/auto.yaml"))
    assert of_project["train"] == {"auto": True}
    with pytest.raises(FileNotFoundError, match=r"no config file .*configs/atuo.yaml; .*: auto.yaml, "):
        yaml_settings.read_yaml(Path("configs/atuo.yaml"))
    (tmp_path / "configs").mkdir()
    assert yaml_settings.read_yaml(Path("configs/auto.yaml")) == of_project
    (tmp_path / "configs" / "auto.yaml").write_text("train: {epochs: 2}\n")
    assert yaml_settings.read_yaml(Path("configs/auto.yaml")) == {"train": {"epochs": 2}}
    with pytest.raises(FileNotFoundError, match=r"no config file configs/atuo.yaml; .* in configs: auto.yaml$"):
        yaml_settings.read_yaml(Path("configs/atuo.yaml"))


def test_recorded_settings_lose_what_was_removed():
    recorded = {"speed": 2, "steps": 3, "tower": {"scale": 1, "dropout": 0.5}}
    left = {"steps": 3, "tower": {"dropout": 0.5}}
    assert without_removed(recorded, Run.REMOVED) == left
    assert without_removed(left | {"tower": {"scale": 2}}, Run.REMOVED) == {"steps": 3, "tower": {"scale": 2}}
    assert without_removed({"tower": None}, Run.REMOVED) == {"tower": None}
