"""Commands that tests fork from a warm process behave as in a new one."""

import pytest

from .processes import WarmCommands


@pytest.fixture
def both(shell, tmp_path):
    """both("train", ...): a command in a fork and in a new process."""

    def run(*words: str, **more):
        return [shell(*words, cwd=tmp_path, real=real, **more) for real in (False, True)]

    return run


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("train", "seed=-1"), {}),
        pytest.param(("train", "model=nothing"), {}, marks=pytest.mark.slow),
        pytest.param(("predict", "--help"), {}, marks=pytest.mark.slow),
        pytest.param(("dashboard", "dry_run=true"), {"WANDB_API_KEY": None}, marks=pytest.mark.slow),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_fork_prints_what_a_new_process_prints(both, words, environment):
    fork, new = both(*words, env=environment)
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.slow
def test_standard_input_reaches_a_fork(both, trained):
    fork, new = both("predict", f"run={trained('mean')[0]}", input="a good film\r\nbad\n")
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout) == (0, new.stdout)
    assert len(fork.stdout.splitlines()) == 2


def test_environment_variables_that_an_import_may_read_cause_a_new_process():
    commands = WarmCommands.__new__(WarmCommands)  # without its process
    commands.environment = {"HOME": "/home", "WANDB_MODE": "offline"}
    assert commands.suits({"HOME": "/home", "WANDB_MODE": "online", "COLUMNS": "80"})
    assert not commands.suits({"HOME": "/home", "LOCAL_RANK": "1"})
    assert not commands.suits({})
