"""Every file in conf/ composes and builds what it names, and every key has a comment."""

import json
import re

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from imdbattn.data.symbols import Vocabulary
from imdbattn.errors import UserError
from imdbattn.launch.composition import composed as composed_by_commands
from imdbattn.settings.keys import conf_dir, settings_digest
from imdbattn.tasks.networks import build_classifier, make_net
from imdbattn.tasks.task import task_of, training_settings
from tests.documents import EXPERIMENTS, FILES, code, jobs_of, section
from tests.marks import slow
from tests.models import ENCODER_DECODERS
from tests.nets import phrases, vectors

PAIRS = ("reverse", "translation")
CHOICES = [
    ["task=seq2seq"] * (file.stem in PAIRS) + [f"{file.parent}={file.stem}"]
    for file in FILES
    if file.parent.name in ("data", "debug", "logger", "task", "trainer")
]
LETTERS = Vocabulary.count(["ABC"])


@pytest.mark.parametrize("choice", CHOICES, ids=" ".join)
def test_every_choice_composes(settings, choice):
    assert settings(*choice).model.name


@pytest.mark.parametrize("choice", [["data=translation"], ["model=seq2seq"]], ids=" ".join)
def test_data_or_a_model_for_pairs_choose_the_task(composed, choice):
    chosen = composed(*choice)
    assert chosen == composed("task=seq2seq", *choice)
    assert training_settings(chosen).task.target.endswith(".Seq2SeqTask")


def test_a_sweep_over_models_of_different_tasks_is_refused():
    """The task of one of them would be that of all jobs."""
    with pytest.raises(UserError, match="model=mean,seq2seq: these belong to different tasks"):
        composed_by_commands("train", ["model=mean,seq2seq"])


def test_slurm_sets_the_number_of_devices_and_machines(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    monkeypatch.setenv("SLURM_NNODES", "2")
    trainer = composed_by_commands("train", ["trainer=slurm"]).trainer
    assert (trainer.devices, trainer.num_nodes, trainer.strategy) == (4, 2, "ddp")


@pytest.mark.parametrize(
    "launcher", [file.stem for file in FILES if file.parent.name == "launcher"]
)
def test_every_launcher_composes(launcher):
    plugins = {"ray_cluster": "hydra_ray_launcher", "slurm": "hydra_submitit_launcher"}
    if launcher in plugins:
        pytest.importorskip(f"hydra_plugins.{plugins[launcher]}")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        found = compose(
            "train", [f"hydra/launcher={launcher}"], return_hydra_config=True
        ).hydra.launcher
    ours = OmegaConf.load(conf_dir() / "hydra" / "launcher" / f"{launcher}.yaml")
    ours.pop("defaults", None)
    assert OmegaConf.to_container(OmegaConf.merge(found, ours)) == OmegaConf.to_container(found)


@pytest.mark.parametrize("every", [False, slow(True)])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_job_of_an_experiment_composes_and_builds(settings, experiment, every):
    """All that its sweep varies, with the first of its seeds; or the last of these jobs."""
    names, jobs = set(), jobs_of(experiment)
    seeds = {word for job in jobs for word in job if word.startswith("seed=")}
    first = [job for job in jobs if min(seeds) in job]
    assert len(first) == len(jobs) / len(seeds)
    if not every:
        first = first[-1:]
    for job in first:
        cfg = settings(f"experiment={experiment}", *job)
        if task_of(cfg).name == "seq2seq":
            make_net(cfg.model, len(LETTERS), len(LETTERS))
        else:
            known = phrases(cfg.model.phrases, 2)[0] if cfg.model.phrases else None
            build_classifier(cfg.model, vectors(), 2, None, known)
        names.add(settings_digest(cfg.dump()))
    assert len(names) == len(first), "two jobs would share a folder"
    assert len(jobs) > 1


def test_the_experiment_file_of_the_guide_is_a_sweep(composed, tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "heads.yaml"
    file.write_text(code(section("guide.md", "### An experiment of your own"), "yaml"))
    words = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=heads"]
    cfg = composed_by_commands("train", words)
    assert cfg.hydra.mode.name == "MULTIRUN"
    job = [f"{key}={str(values).split(',')[0]}" for key, values in cfg.hydra.sweeper.params.items()]
    settings = training_settings(composed(*words, *job))
    assert settings.optim.target == "torch.optim.AdamW"
    assert settings.data.batch_tokens == 4096
    assert (settings.trainer.max_epochs, settings.data.word_dropout) == (4, 0.3)


def test_every_rung_extends_the_one_that_it_inherits_from():
    """model.extends, which comparisons use, is the file that the rung inherits from."""
    for file in (conf_dir() / "model").glob("*.yaml"):
        content = OmegaConf.load(file)
        inherited = content.get("defaults", [])
        parents = [entry for entry in inherited if isinstance(entry, str) and entry != "_self_"]
        assert [content.model.extends] == (parents or [None]), file


@pytest.mark.parametrize("model", ["residual_pe_cls", "wide", "seq2seq_attention"])
def test_hydra_instantiates_the_network_of_a_model_as_the_package_does(composed, settings, model):
    is_writer = model in ENCODER_DECODERS
    words = ["task=seq2seq"] * is_writer + [f"model={model}"]
    data = (30, 40) if is_writer else (nn.Embedding(50, 20), 2)
    if not is_writer:
        data[0].width = 20
    torch.manual_seed(0)
    theirs = instantiate(composed(*words)["model"]["net"])(*data)
    torch.manual_seed(0)
    ours = make_net(settings(*words).model, *data)
    assert (type(theirs), str(theirs)) == (type(ours), str(ours))
    assert all(map(torch.equal, theirs.state_dict().values(), ours.state_dict().values()))


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_key_is_explained(file):
    """A comment on the key's own line, or a heading over the file or block that explains it."""
    lines = (conf_dir() / file).read_text().splitlines()
    assert any(line.startswith("# ") for line in lines[:3]), "no heading"
    if file.parts[0] == "hydra" or (
        file.parts[0] in ("model", "debug", "experiment") and file.stem not in FIRST
    ):
        # Hydra's own keys; and models, which repeat keys that the first of their family explains
        return
    for line in lines:
        if re.match(r"\s*[a-z_]+: *[^ #]", line) and not re.match(r"\s*(_partial_|- )", line):
            assert "# " in line or line.strip().startswith(REPEATED), line


FIRST = ("mean", "seq2seq")
REPEATED = ("accelerator:", "devices:", "strategy: ddp", "precision: bf16-mixed", "dir: .")
REPEATED += ("output_subdir: null", "_target_: lightning.Trainer")  # which another file explains


def test_numbers_and_switches_may_come_from_the_environment(settings, monkeypatch):
    monkeypatch.setenv("IMDBATTN_LR", "2e-3")
    words = ["optim.lr=${oc.env:IMDBATTN_LR}", "seed='2'", "pictures=${oc.env:IMDBATTN_NO,false}"]
    read = settings("model=mean", *words)
    assert (read.optim.lr, read.seed, read.pictures) == (0.002, 2, False)
    typed = settings("model=mean", "optim.lr=2e-3", "seed=2", "pictures=false")
    assert settings_digest(read.dump()) == settings_digest(typed.dump())


def test_a_pattern_names_all_runs_that_it_matches(settings, tmp_path):
    for name in ("day1", "day2", "night"):
        (tmp_path / name).mkdir()
    for config in ("compare", "explore", "faithfulness"):
        read = settings(f"runs={tmp_path}/day*", config=config)
        assert read.runs == [f"{tmp_path}/day1", f"{tmp_path}/day2"]


def test_validated_settings_equal_the_composed_ones(composed):
    given = composed("model=wide", "optim.lr=1", "+optim.betas=[0.9,0.99]")
    validated = training_settings(given)
    # 1 is not 1.0, for digests
    assert json.dumps(validated.dump(), sort_keys=True) == json.dumps(given, sort_keys=True)
    assert (validated.data.max_tokens, validated.model.phrases.longest) == (512, 3)
