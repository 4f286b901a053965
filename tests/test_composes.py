"""Promise 8: every file in conf/ composes and builds what it names, and every key is explained."""

import itertools
import re

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from imdbattn.settings import RULES, RUNGS, conf_dir, digest, has_plugin
from imdbattn.training.build import build_net, build_trainer, make

from .nets import net, vectors

FILES = sorted(file.relative_to(conf_dir()) for file in conf_dir().rglob("*.yaml"))
CHOICES = [f"{file.parent}={file.stem}" for file in FILES if file.parent.name in ("data", "debug", "logger", "trainer")]
CHOICES += [f"model={rung}" for rung in RUNGS]
EXPERIMENTS = [file.stem for file in FILES if file.parent.name == "experiment"]
ENTRIES = [file.stem for file in FILES if not file.parent.parts]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes(settings, choice):
    assert settings(choice)["model"]["name"]


def test_slurm_says_how_many_devices_and_machines(settings, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    monkeypatch.setenv("SLURM_NNODES", "2")
    trainer = settings("trainer=slurm")["trainer"]
    assert [trainer[key] for key in ("devices", "num_nodes", "strategy", "accelerator")] == [4, 2, "ddp", "gpu"]


@pytest.mark.parametrize("launcher", [file.stem for file in FILES if file.parent.name == "launcher"])
def test_every_launcher_composes(launcher):
    if launcher == "ray_cluster" and not has_plugin("hydra_ray_launcher"):
        pytest.skip("the extra ray lives in an environment of its own")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        found = compose("train", [f"hydra/launcher={launcher}"], return_hydra_config=True).hydra.launcher
    ours = OmegaConf.load(conf_dir() / "hydra" / "launcher" / f"{launcher}.yaml")
    ours.pop("defaults")
    assert OmegaConf.to_container(OmegaConf.merge(found, ours)) == OmegaConf.to_container(found)


@pytest.mark.parametrize("config", ENTRIES)
def test_every_entry_points_config_composes(settings, config):
    assert settings(config=config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_job_of_an_experiment_composes_and_builds(settings, experiment):
    """All that its sweep varies, one value after the other."""
    params = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    assert [key for key in params if key == "seed"]
    values = [[f"{key}={value}" for value in str(values).split(",")] for key, values in params.items()]
    digests = set()
    jobs = list(itertools.product(*values))
    for job in jobs:
        cfg = settings(f"+experiment={experiment}", *job)
        build_net(cfg["model"], vectors(), 2, None)
        digests.add((digest(cfg), cfg["seed"]))
    assert len(digests) == len(jobs) > 1, "two jobs would share a folder"


def test_the_ladders_experiment_has_every_rung_in_its_order():
    params = OmegaConf.load(conf_dir() / "experiment" / "ladder.yaml").hydra.sweeper.params
    assert tuple(params.model.split(",")) == RUNGS


def test_every_rung_follows_the_one_it_adds_a_line_to(settings):
    """model.after, by which comparisons find neighbours, is the file that the rung inherits from."""
    for rung in RUNGS:
        parents = OmegaConf.load(conf_dir() / "model" / f"{rung}.yaml").get("defaults", [None])
        assert settings(f"model={rung}")["model"]["after"] == parents[0], rung


def test_every_rung_has_its_file():
    assert {file.stem for file in FILES if file.parent.name == "model"} == set(RUNGS)


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_builds_the_model_it_names(settings, rung):
    model = net(settings, rung)
    assert len(model.layers) == (0 if rung in ("mean", "learned_query", "text_query") else 3)
    residual, cls = "residual" in rung, rung.endswith("cls")
    assert all(type(layer).__name__ == ("ResidualLayer" if residual else "PlainLayer") for layer in model.layers)
    position = "Learned" if "learned" in rung.split("_")[1:] else "Sinusoidal" if "_pe" in rung else "NoPositions"
    assert type(model.positions).__name__ == position
    pooling = {"learned_query": "LearnedQueryPooling", "text_query": "TextQueryPooling"}.get(rung)
    assert type(model.pooling).__name__ == (pooling or ("ClsPooling" if cls else "MeanPooling"))


def test_the_exercises_defaults(settings):
    cfg = settings("model=residual_pe")
    assert (cfg["model"]["layers"], cfg["model"]["layer"]["heads"], cfg["model"]["width"]) == (3, 1, None)
    assert cfg["model"]["layer"]["score"]["_target_"].endswith("ScaledDot")
    assert cfg["data"]["max_tokens"] == 512
    assert cfg["data"]["glove"]["dim"] == 50


def test_optimisers_and_trainers_build(settings):
    cfg = settings("trainer=cpu")
    optimizer = make(cfg["optim"], "optim", torch.optim.Optimizer)([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert build_trainer(cfg["trainer"]).max_epochs == cfg["trainer"]["max_epochs"]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_key_is_explained(file):
    """A comment on the key's own line, or a heading over the file or block that explains it."""
    lines = (conf_dir() / file).read_text().splitlines()
    assert any(line.startswith("# ") for line in lines[:3]), "no heading"
    if file.parts[0] == "hydra" or (file.parts[0] in ("model", "debug", "experiment") and file.stem != "mean"):
        return  # Hydra's own keys; and rungs, which repeat keys that model/mean.yaml explains
    for line in lines:
        if re.match(r"\s*[a-z_]+: *[^ #]", line) and not re.match(r"\s*(_partial_|- )", line):
            assert "# " in line or line.strip() in REPEATED, line


REPEATED = {  # overrides of keys that another file explains
    "accelerator: cpu",
    "accelerator: gpu",
    "devices: 1",
    "devices: 2",
    "devices: auto",
    "strategy: ddp",
    "precision: bf16-mixed",
    "dir: .",
    "output_subdir: null",
    "_target_: lightning.Trainer",
}


def test_every_rule_is_about_a_setting_that_exists(settings):
    cfg = settings("model=residual_learned")
    for key in RULES:
        node = cfg
        for part in key.split("."):
            assert part in node, key
            node = node[part]
