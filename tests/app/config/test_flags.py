import re

import pytest

from app.__main__ import main
from app.config.config import Config
from app.config.flags import ZOO_FLAGS, advice_on_flag
from common import yaml_settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch_size=100"], "--batch_size is no flag of train: give train.batch_size=100"),
        (["--batch_size", "100", "--epochs", "3"], "give train.batch_size=100"),
        (["--batch-size=7"], "give train.batch_size=7"),
        (["--data_path=here"], "give --dataset=here"),
        (["--dataset", "x", "--deep_layer_dim", "512", "256", "train.epochs=2"], "give model.hidden_widths=[512, 256]"),
        (["--keep_prob=0.8"], "give model.dropout=0.2"),
        (["--vocab_size=100"], "the prepared folder decides it"),
        (["--eval_batch_size"], "evaluations have the batches of the training"),
        (["--train.batch_size=100"], "give train.batch_size=100"),
        (["--dropout=0.1"], "give model.dropout=0.1"),
        (["--dataset", "x", "--fly=1"], "app train: error: unrecognized arguments: --fly=1"),
    ],
)
def test_a_flag_of_another_program_is_an_error_that_names_the_setting(capsys, words, said):
    with pytest.raises(SystemExit) as error:
        main(["train", *words])
    assert error.value.code == 2
    assert said in capsys.readouterr().err


def test_what_is_advised_is_a_setting():
    values = {
        "deep_layer_act": "tanh",
        "device_target": "CPU",
        "ckpt_path": "here",
        "stra_ckpt": "",
        "keep_prob": "0.5",
    }
    for flag, meaning in ZOO_FLAGS.items():
        if re.search(r"^[a-z_]+\.[a-z_]+=", meaning):
            word = advice_on_flag(flag, [values.get(flag, "8")]).removeprefix("give ")
            assert yaml_settings.override(Config(), [word]) is not None


def test_the_guide_has_every_flag_and_its_setting(project):
    table = (project / "docs" / "training.md").read_text().partition("| the zoo's flag |")[2].partition("\n\n")[0]
    rows = [line.split(" | ", 1) for line in table.splitlines() if line.startswith("| `--")]
    said = {flag: here for flags, here in rows for flag in re.findall(r"--(\w+)", flags)}
    assert said.keys() == ZOO_FLAGS.keys()
    for flag, meaning in ZOO_FLAGS.items():
        name = re.match(r"(--)?[a-z_.]+(?==)", meaning)
        assert name is None or name[0] in said[flag]
