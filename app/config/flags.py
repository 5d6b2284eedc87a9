"""Translate flags `--name=value` of the MindSpore model zoo's Wide&Deep program to settings of this project.

docs/training.md has the same list as a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from app.config.config import Config

_OF_THE_DATA = "the prepared folder decides it"
# Flag of the model zoo's program -> the setting to give instead, with {} in place of the flag's value. A text without
# {} is not a setting, but explains why there is none.
ZOO_FLAGS = {
    "data_path": "--dataset={}",
    "dataset_type": "--layout=zoo of `prepare`, if the zoo is to read the folder too",
    "epochs": "train.epochs={}",
    "batch_size": "train.batch_size={}",
    "eval_batch_size": "evaluations have the batches of the training, train.batch_size",
    "emb_dim": "model.embedding_dim={}",
    "deep_layer_dim": "model.hidden_widths=[{}]",
    "deep_layer_act": "model.activation={}",
    "keep_prob": "model.dropout={}",
    "dropout_flag": "model.dropout above 0 drops",
    "l2_coef": "loss.l2_coef={}",
    "device_target": "device.target={}",
    "ckpt_path": "checkpoint.dir={}",
    "output_path": "the run is in device_0 of the folder where the command is started",
    "eval_file_name": "the file is eval.log of the run's folder",
    "loss_file_name": "the file is loss.log of the run's folder",
    "stra_ckpt": "the ranks do not split the tower; a program that does is in examples/tower_over_ranks",
    "field_size": _OF_THE_DATA,
    "vocab_size": _OF_THE_DATA,
    "dense_dim": _OF_THE_DATA,
    "slot_dim": _OF_THE_DATA,
    "threshold": "prepare.min_count of `prepare`, one more than the threshold, decides it",
    "host_device_mix": "the tables are always in the host's memory, the tower on the device",
    "vocab_cache_size": "rows go to the device batch by batch, without a cache",
    "sparse": "updates of the tables are always sparse",
    "parameter_server": "--servers=N, with --ranks=M, starts servers",
    "full_batch": "the ranks always share a batch of train.batch_size rows",
    "field_slice": "rows are always divided among the ranks",
    "deep_table_slice_mode": "rows are always divided among the ranks",
}


def advice_on_flag(flag: str, values: Sequence[str]) -> str:
    """Return the end of an error message about an unknown argument `--flag=value`: what the user can give instead.

    Return "" if MindSpore's model zoo has no such flag and this project has no setting of that name.
    """
    value = " ".join(values) or "VALUE"
    meaning = ZOO_FLAGS.get(flag, "")
    if flag == "keep_prob" and re.fullmatch(r"[\d.]+", value):
        value = f"{1 - float(value):g}"  # The zoo's flag is the share to keep, the setting the share to drop.
    if flag == "deep_layer_dim":
        value = ", ".join(re.findall(r"\d+", value)) or value
    if meaning:
        return f"give {meaning.format(value)}" if "={}" in meaning or "=[{}]" in meaning else meaning
    matches = [name for name in _settings(Config()) if flag in (name, name.rpartition(".")[2])]
    return f"give {' or '.join(f'{name}={value}' for name in matches)}" if matches else ""


def _settings(section: Any, before: str = "") -> Iterator[str]:
    """Yield the full names of all settings in `section`, such as `train.epochs`. `before` is put before each name.

    For optimizers and schedules, only the settings of the default kind are included.
    """
    for field in fields(section):
        value, name = getattr(section, field.name), f"{before}{field.name}"
        if is_dataclass(value):
            yield from _settings(value, f"{name}.")
        else:
            yield name
