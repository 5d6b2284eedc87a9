import dataclasses
import math

import pytest

from app.config import optimizer_settings
from app.config.config import Config
from app.config.optimizer_settings import AdagradOptions, AdamOptions, AdamWOptions, FtrlOptions
from common import settings, yaml_settings
from tests.programs import run_python

KINDS = [kind for name, kind in vars(optimizer_settings).items() if name[0] != "_" and isinstance(kind, type)]
OPTIONS = [*vars(Config()).values(), *(kind() for kind in KINDS if kind.__name__.endswith(("Options", "Schedule")))]


def resolved(*overrides):
    return yaml_settings.resolve(Config, None, overrides)


def test_every_config_file_loads(project):
    paths = sorted((project / "configs").glob("*.yaml"))
    assert {"criteo.yaml", "demo.yaml", "tiny.yaml"} <= {path.name for path in paths}
    for path in paths:
        yaml_settings.resolve(Config, path)


def test_criteo_has_the_model_zoo_s_settings(project):
    """They stand in the file, and are the defaults too."""
    config = yaml_settings.resolve(Config, project / "configs" / "criteo.yaml")
    assert config.prepare.min_count == 101
    assert (config.model.embedding_dim, config.model.hidden_widths) == (80, (1024, 512, 256, 128))
    assert (config.loss.l2_coef, config.loss.loss_scale, config.train.batch_size) == (8e-5, 1024, 16_000)
    wide = config.wide_optimizer
    assert (wide.learning_rate, wide.l1, wide.l2, wide.initial_accumulator) == (5e-2, 1e-8, 1e-8, 1.0)
    for adam in (config.deep_optimizer, config.tower_optimizer):
        assert (adam.learning_rate, adam.epsilon) == (3.5e-4, 1e-8)


def test_settings_survive_being_written_and_read(project, tmp_path):
    """config.yaml in the run folder and the manifest's `config` are written so."""
    config = yaml_settings.resolve(
        Config, project / "configs" / "tiny.yaml", ["model.hidden_widths=[7]", "deep_optimizer.name=adam"]
    )
    assert settings.merge(Config(), settings.as_dict(config), where="manifest") == config


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.batchsize=5", "unknown key 'train.batchsize'; did you mean 'train.batch_size'"),
        ("trian.batch_size=5", r"unknown key 'trian'; did you mean 'train\.batch_size'\?"),
        ("trian.sed=5", "unknown key 'trian'; did you mean 'train'"),
        ("deep.embedding_dim=8", r"unknown key 'deep'; did you mean 'model\.embedding_dim'\?"),
        ("train.embedding_dim=8", r"unknown key 'train\.embedding_dim'; did you mean 'model\.embedding_dim'\?"),
        ("every_steps=5", r"did you mean 'eval\.every_steps' or 'checkpoint\.every_steps'\?"),
        ("device.target=cpu", "'device.target' must be one of auto, CPU, GPU, Ascend; found 'cpu'"),
        ("tables.backend=fast", "'tables.backend' must be one of auto, native, stock, reference; found 'fast'"),
        ("train.resume=maybe", "'train.resume' must be one of auto, never, require; found 'maybe'"),
        ("deep_optimizer.name=adm", "'deep_optimizer.name' must be one of lazy_adam, adam, .*; did you mean 'adam'"),
        ("wide_optimizer.name=adam", "'wide_optimizer.name' must be one of ftrl, adagrad, sgd; found 'adam'"),
        ("deep_optimizer.beta3=1", "unknown key 'deep_optimizer.beta3'; did you mean 'deep_optimizer.beta"),
        ("wide_optimizer={name: sgd, l1: 1}", "unknown key 'wide_optimizer.l1'; known here: .*learning_rate"),
    ],
)
def test_unknown_keys_and_wrong_types_are_named(word, message):
    with pytest.raises(ValueError, match=message):
        resolved(word)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.embedding_dim=0", "model.embedding_dim must be 1 or more; found 0"),
        ("model.hidden_widths=[]", "model.hidden_widths must be widths of 1 or more"),
        ("model.hidden_widths=[8, 0]", r"found \[8, 0\]"),
        ("model.initial_row_scale=.nan", "model.initial_row_scale must be 0 or more, and finite; found nan"),
        ("model.dropout=1", r"model.dropout must be in \[0, 1\); found 1"),
        ("deep_optimizer.schedule.name=plataeu", "'deep_optimizer.schedule.name' must be one of .*; did you mean 'pla"),
        ("wide_optimizer.schedule={name: cosine}", "schedule.final_factor must be above 0 for ftrl"),
        ("loss.l2_coef=.inf", "loss.l2_coef must be 0 or more, and finite; found inf"),
        ("loss.loss_scale=0", "loss.loss_scale must be above 0"),
        ("loss.loss_scale=1e39", "loss.loss_scale must be above 0, and finite in float32; found 1e"),
        ("wide_optimizer.learning_rate=0", "learning_rate must be above 0"),
        ("wide_optimizer.initial_accumulator=0", "initial_accumulator must be above 0"),
        ("deep_optimizer.beta1=1", r"beta1 must be in \[0, 1\)"),
        ("tower_optimizer.beta2=0.99999999", r"beta2 must be in \[0, 1\) as float32"),
        ("deep_optimizer.epsilon=1e-39", "epsilon must be 1.2e-38 or more"),
        ("train.epochs=0", "train.epochs must be 1 or more; found 0"),
        ("checkpoint.every_minutes=.inf", "checkpoint.every_minutes must be 0 or more, and finite; found inf"),
        ("checkpoint.shards=0", "checkpoint.shards must be 1 or more; found 0"),
        ("prepare.min_count=0", "prepare.min_count must be 1 or more"),
    ],
)
def test_values_out_of_range_are_named(word, message):
    with pytest.raises(ValueError, match=message):
        resolved(word)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: getattr(options, "name", type(options).__name__))
def test_every_number_has_a_range(options):
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        for bad in (-1, *[math.nan] * isinstance(value, float)) if type(value) in (int, float) else ():
            with pytest.raises(ValueError, match=rf"\b{field.name} must be"):
                dataclasses.replace(options, **{field.name: bad})


def test_an_optimizer_is_chosen_by_name_and_starts_from_its_own_defaults():
    config = resolved("deep_optimizer={name: adam, learning_rate: 1e-3}", "tower_optimizer.name=adamw")
    assert config.deep_optimizer == AdamOptions(learning_rate=1e-3)
    assert config.tower_optimizer == AdamWOptions()
    assert config.wide_optimizer == FtrlOptions()


def test_the_command_line_changes_an_optimizer_that_a_file_has_chosen(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("deep_optimizer: {name: adagrad, learning_rate: 0.5}")
    config = yaml_settings.resolve(Config, path, ["deep_optimizer.epsilon=0.25"])
    assert config.deep_optimizer == AdagradOptions(learning_rate=0.5, epsilon=0.25)


def test_settings_are_read_without_mindspore():
    """Threads are an environment variable that must stand before MindSpore is imported."""
    run_python("-c", "import sys, app.config.config, app.__main__; sys.exit('mindspore' in sys.modules)")
