"""A new task needs a module, a class of settings, a YAML file, and a line in each of the two tables TASKS."""

import json
import sys

import pyarrow.parquet as pq
import pytest

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from imdbattn.runs.predict import load_predictor
from imdbattn.runs.score import score_run
from imdbattn.settings import schema
from imdbattn.tasks import task

TASK = '''
"""Predicts which share of a review's words is the word `the`, as the mean of a number for each word."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from imdbattn.data.corpus import prepare
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.run_folder import link_texts
from imdbattn.settings.schema import Group, ModelName, ReviewData, Training
from imdbattn.tasks.build import load_net
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.task import Task

THE = FIRST_WORD  # the first word of the vectors


class Model(Group):
    name: ModelName


class ShareSettings(Training):
    task: Literal["share"]
    choose_by: Literal["loss"]
    data: ReviewData
    model: Model


@dataclass(frozen=True)
class Shares:
    rows_N: Tensor
    predicted_N: Tensor
    label_N: Tensor

    def values(self):
        loss = (self.predicted_N - self.label_N).square().mean().item()
        return {"accuracy": 1 - loss / self.label_N.var(unbiased=False).item(), "loss": loss}  # R squared

    def columns(self):
        return {"label": self.label_N.numpy(), "predicted": self.predicted_N.numpy()}


class ShareModule(Learner):
    def evaluate_batch(self, batch):
        words_BT, lengths_B = batch.tokens_BT >= FIRST_WORD, batch.lengths_B.clamp(min=1)
        predicted_B = (self.net(batch.tokens_BT)[..., 0] * words_BT).sum(1) / lengths_B
        return batch.rows_B, predicted_B, (batch.tokens_BT == THE).sum(1) / lengths_B

    def training_step(self, batch, batch_idx):
        _, predicted_B, label_B = self.evaluate_batch(batch)
        losses_B = (predicted_B - label_B).square()
        self.add_to_epoch(losses_B, losses_B < 1e-4, len(losses_B))
        return losses_B.mean()

    def make_scores(self, outputs):
        return Shares(*outputs)


class ShareTask(Task):
    def prepare(self, cfg, trained=None, uncut=False):
        return prepare(cfg.data, uncut)

    def loaders(self, cfg, corpus, test_split="test"):
        return BatchData(cfg, corpus, cfg.data.batch_tokens, test_split)

    def new(self, cfg, corpus, resumed=None):
        net = nn.Embedding.from_pretrained(torch.zeros(len(corpus.glove.vectors), 1), freeze=False)
        return ShareModule(net, cfg, {})

    def load(self, cfg, checkpoint, corpus=None):
        module = self.new(cfg, corpus or prepare(cfg.data))
        load_net(checkpoint, lambda weights, facts: module.net)
        return module

    def save_texts(self, corpus, split, path):
        link_texts(corpus.texts(split), path)


TASK = ShareTask()
'''
YAML = """# @package _global_
defaults:
  - override /model: null
task: share
model:
  name: share
choose_by: loss
optim:
  lr: 0.1
trainer:
  max_epochs: 12
"""


@pytest.fixture
def toy(tmp_path, monkeypatch) -> str:
    """The override that finds task=share."""
    (tmp_path / "share_task.py").write_text(TASK)
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "share.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "share_task", raising=False)
    monkeypatch.setitem(task.TASKS, "share", "share_task")
    from share_task import ShareSettings

    monkeypatch.setitem(schema.TASKS, "share", ShareSettings)
    return f"hydra.searchpath=[file://{tmp_path}/conf]"


def test_a_toy_task_trains_and_is_evaluated(toy, settings, small, tmp_path):
    run = tmp_path / "run"
    metrics = fit(settings(toy, "task=share", *small), run)
    assert metrics == json.loads((run / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.8
    labels = pq.read_table(run / "predictions.parquet")["label"].to_pylist()
    texts = pq.read_table(run / "reviews.parquet")["text"].to_pylist()
    assert labels == pytest.approx([text.split().count("the") / len(text.split()) for text in texts])
    scores = score_run(settings(f"run={run}", "trainer=cpu", config="evaluate"))
    assert (scores["accuracy"], scores["reviews"]) == (metrics["test_accuracy"], metrics["test_reviews"])
    with pytest.raises(UserError, match="is a run of task=share, which cannot be applied to new texts"):
        load_predictor(settings(f"run={run}", config="predict"))
