"""Launches of several ranks in a folder that has a run, and their exit statuses."""

import pytest

RATES = [f"{group}_optimizer.learning_rate=1e4" for group in ("wide", "deep", "tower")]


@pytest.mark.ranks
def test_servers_too_take_the_model_that_was_put_aside_and_a_diverged_job_ends_with_status_4(start_servers, tmp_path):
    def launch(*settings):
        process = start_servers(tmp_path, 1, 2, *settings, epochs=1)
        errors = process.communicate(timeout=240)[1]
        return process.returncode, errors

    status, errors = launch(*RATES)
    assert status == 4, errors
    assert errors.count("warning: the training did not learn: its last epoch's mean loss is") == 1
    assert "error:" not in errors
    status, errors = launch("train.init_from=device_0", *RATES)
    assert status == 4, errors
    assert "train.init_from is 'device_0.1/checkpoints/step-00000005' in this run, not 'device_0'" in errors
    log = (tmp_path / "server_0" / "server0.log").read_text()
    assert "device_0.1/checkpoints/step-00000005: deep table" in log
    status, errors = launch("train.init_from=device_0", *RATES)
    assert status == 4, errors
    assert "is finished: all 1 epochs are done" in errors
    assert sorted(path.name for path in tmp_path.glob("device_0*")) == ["device_0", "device_0.1"]


@pytest.mark.ranks
def test_a_name_is_that_of_all_folders_of_a_job(start_servers, tmp_path):
    """Ranks and servers lie beside the run, so that two jobs share no folder."""
    process = start_servers(tmp_path, "1", "2", "train.steps=3", "--name", "wide", epochs="-")
    errors = process.communicate(timeout=240)[1]
    assert process.returncode == 0, errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wide", "wide.rank1", "wide.server0"]
    assert (tmp_path / "wide" / "run.json").is_file() and (tmp_path / "wide.rank1" / "run.json").is_file()
    assert "the ranks that train have ended" in (tmp_path / "wide.server0" / "server0.log").read_text()
