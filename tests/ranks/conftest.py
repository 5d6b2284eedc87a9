"""Jobs of several ranks, started as a user does, and two undisturbed ones that all tests compare with."""

import os
import subprocess

import pytest

from tests.ranks.jobs import SETTINGS


@pytest.fixture(scope="session")
def start_script(project, tiny_dataset, command_environment, mpirun):
    """Starts a script with sizes of the job and settings in a folder; the ranks' messages go to its stderr."""

    def begin(name, folder, *sizes, settings, epochs=2, rank_table=(), **environment):
        folder.mkdir(exist_ok=True)
        words = ["bash", project / "scripts" / name, *sizes, epochs, tiny_dataset, *rank_table, *SETTINGS, *settings]
        environment = {**command_environment, "MPIRUN": mpirun, **environment}
        return subprocess.Popen(list(map(str, words)), cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)

    return begin


@pytest.fixture(scope="session")
def start(start_script):
    script = "run_auto_parallel_train.sh"
    return lambda folder, ranks, *settings, **options: start_script(
        script, folder, ranks, settings=settings, rank_table="-", **options
    )


@pytest.fixture(scope="session")
def run(start):
    def to_the_end(folder, ranks, *settings, **options):
        process = start(folder, ranks, *settings, **options)
        _, errors = process.communicate(timeout=600)
        return process.returncode, errors

    return to_the_end


@pytest.fixture(scope="session")
def without_mpi(project, tmp_path_factory):
    """Environment variables with which mpi4py cannot load its library."""
    folder = tmp_path_factory.mktemp("no_mpi")
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py" / "__init__.py").touch()
    (folder / "mpi4py" / "MPI.py").write_text("raise ImportError('libmpi.so.40: cannot open shared object file')")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{project}"}


@pytest.fixture(scope="session")
def one_rank(run, tmp_path_factory, without_mpi):
    """Folder of a run of one process, which must work without MPI."""
    folder = tmp_path_factory.mktemp("one")
    status, errors = run(folder, 1, **without_mpi)
    assert status == 0, errors
    return folder


@pytest.fixture(scope="session")
def two_ranks(run, tmp_path_factory):
    """Folder of a run of two ranks, with a checkpoint in the middle of the first epoch as well."""
    folder = tmp_path_factory.mktemp("two")
    status, errors = run(folder, 2, "checkpoint.every_steps=3")
    assert status == 0, errors
    return folder


@pytest.fixture(scope="session")
def start_servers(start_script):
    script = "run_parameter_server_train.sh"
    return lambda folder, servers, workers, *settings, **options: start_script(
        script, folder, servers, workers, settings=settings, **options
    )
