"""Wrong settings end in one clear line and a non-zero exit; help is quick and says what there is to choose."""

from imdbattn.settings.keys import RUNGS


def test_a_wrong_value_ends_in_one_line_and_a_status(shell):
    done = shell("train", "seed=-1")
    assert done.returncode == 2
    assert done.stderr == "error: seed=-1 must be greater than or equal to 0\n"


def test_help_lists_the_choices(shell):
    done = shell("train", "--help")
    assert done.returncode == 0
    for word in (*RUNGS, "wandb, ", "imdbattn-train -m", "run=<run folder>", "max_tokens: 512"):
        assert word.rstrip(", ") in done.stdout, word
    assert "== Configuration groups ==" not in done.stdout
    assert "run=<run folder>" in shell("predict", "--help").stdout
    assert "split=validation" in shell("evaluate", "--help").stdout
