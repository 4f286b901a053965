"""Promise 10: what README says runs, runs. Its commands are read from README, not copied here."""

import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from imdbattn.data.pairs import PACKAGED
from imdbattn.settings.cli import conf_dir, plain_dict
from imdbattn.settings.keys import flat, within
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_net

from .nets import vectors
from .test_composes import jobs_of

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [line for line in LINES if re.match(r"(echo .*\| *)?python -m imdbattn\.", line)]


def test_there_are_commands_to_try():
    assert len(COMMANDS) >= 8
    assert {command.split("imdbattn.")[1].split()[0] for command in COMMANDS} == {
        "train",
        "evaluate",
        "predict",
        "compare",
        "picture",
        "dashboard",
    }


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS), ids=lambda command: command[10:60])
def test_commands_run_on_a_small_world(command, shell, small, world, trained, tmp_path):
    """Each command as README has it, with the small world's data in place of IMDB and GloVe."""
    piped, _, command = command.rpartition("| ")
    name, *arguments = shlex.split(command.removeprefix("python -m imdbattn."))
    folder, _ = trained("residual_pe_cls")
    arguments = [f"run={folder}" if argument.startswith("run=") else argument for argument in arguments]
    arguments = [a.replace("my_reviews.csv", f"{world}/reviews.csv") for a in arguments]
    (tmp_path / "reviews.txt").write_text("a good film\n")
    if name == "compare":  # there is one run here, and it belongs to other tests, too
        shutil.copytree(folder, tmp_path / "runs" / "one")
        arguments = ["runs=runs", "out=comparison"]
    if name == "dashboard" and "dry_run=true" not in arguments:
        done = shell(name, *arguments, cwd=tmp_path, env={"WANDB_API_KEY": None, "NETRC": "/nowhere"})
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), "a user without an account is told so"
        return
    if arguments == ["resume=runs/latest"]:
        done = shell(name, f"resume={folder}", cwd=tmp_path)
        assert "This run was finished before" in done.stdout, done.stderr
        return
    trains = name == "train" and "--cfg" not in arguments and "--help" not in arguments
    writes = any("seq2seq" in a for a in arguments)
    if trains:
        if any(a.startswith("+experiment=") for a in arguments):  # one job of it
            arguments = [a for a in arguments if not a.startswith(("seed=", "hydra.launcher.partition="))]
            arguments += ["seed=1", *(["model=seq2seq"] if writes else ["model=mean", "model.layers=0"])]
            arguments = [a.replace("launcher=slurm", "launcher=submitit_local") for a in arguments]
        if writes:  # it brings its own pairs
            common = ("logger=", "trainer", "threads=", "pictures=")
            small = [*(a for a in small if a.startswith(common)), "model.hidden=8", "model.width=8"]
            if not any("translation" in a for a in arguments):
                small += ["data.train=60", "data.validation=10", "data.test=10"]
            if any("lengths" in a for a in arguments):
                small.append("data.lengths=[1,5]")
            pairs = (PACKAGED.read_text().splitlines()[row] for row in range(0, 900, 3))
            (tmp_path / "fra.txt").write_text("\n".join(pairs))
        if any("order_probe" in a for a in arguments):  # it brings its own reviews
            small = [a for a in small if not a.startswith("data.path=")]
            arguments += ["data.probe.train=40", "data.probe.validation=10", "data.probe.test=10"]
        mine = {argument.split("=")[0] for argument in arguments}
        small = [argument for argument in small if argument.split("=")[0] not in mine]
        shrunk = [a for a in arguments if not a.startswith(("data.source=", "data.glove", "data.tokenizer=torchtext"))]
        arguments = [*shrunk, *small, "trainer.max_epochs=1"]
    if resumed := [a for a in arguments if a.startswith("resume=")]:
        arguments = [a for a in arguments if a not in resumed]
        first = shell(name, *arguments, f"hydra.sweep.dir={resumed[0].removeprefix('resume=')}", cwd=tmp_path)
        assert first.returncode == 0, first.stderr
        arguments += resumed
    done = shell(name, *arguments, cwd=tmp_path, input=shlex.split(piped)[1] if piped else None)
    assert done.returncode == 0, done.stderr
    if trains:
        assert list(tmp_path.rglob("debug.json" if "debug=" in command else "metrics.json"))
        assert not resumed or "1 job: 1 kept" in done.stdout


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", "\n".join(LINES), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_setting_that_readme_names_exists(settings):
    known = {*flat(settings("model=residual_learned")), *flat(settings("task=seq2seq", "data=reverse"))}
    known |= {*flat(settings("task=seq2seq", "data=translation")), "data.probe", *flat(settings("model=bigrams"))}
    known |= {*flat(settings("model=wide")), *flat(settings("task=masked_words"))}
    for setting in set(re.findall(r"`((?:data|model|trainer|logger|optim)\.[a-z_.]+)[=`]", README)):
        assert any(within(key, setting) for key in known), setting


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of README, without its head."""
    section = README.partition(f"\n{heading}\n")[2].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_defaults_are_those_of_the_table_of_settings(settings):
    found = {key: None if value == {} else value for key, value in flat(settings()).items()}
    for entry in OmegaConf.load(conf_dir() / "train.yaml").defaults:
        found |= {} if isinstance(entry, str) else entry  # the files that it chooses
    compared = 0
    for keys, defaults, _ in table("## Settings"):
        names, values = re.findall("`(.+?)`", keys), defaults.replace("`", "").split(", ")
        values = values[-len(names) :] if len(values) > 1 else values * len(names)  # "by rung, 0.5" is one value
        for name, value in zip(names, values, strict=True):
            # Not those that a rung decides; nor the size of a batch, which the training set may decide.
            if value != "by rung" and name != "data.batch_tokens":
                none = value in ("none", "that of the vectors")
                assert found[name] == (None if none else yaml.safe_load(value)), name
                compared += 1
    assert compared > 25


def test_experiments_have_the_jobs_of_the_table_of_sweeps():
    rows = table("## Sweeps")
    for name, _, jobs in rows:
        assert len(jobs_of(name.strip("`"))) == math.prod(map(int, re.findall(r"\d+", jobs))), name
    assert len(rows) > 8


def test_the_rung_that_readme_adds_builds(tmp_path):
    from hydra import compose, initialize_config_dir

    (example,) = re.findall(r"```yaml\n(# @package _global_.*?)```", README, re.DOTALL)
    shutil.copytree(conf_dir(), tmp_path / "conf")
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(example)
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        cfg = validate(plain_dict(compose("train", ["model=mine"]))).model_dump()
    model = build_net(cfg["model"], vectors(), 2, None)
    assert (model.layers[0].f.heads, model.head.in_features) == (4, 64)


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


def test_every_file_that_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
