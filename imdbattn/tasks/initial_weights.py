"""Initial weights from `init`: those of a run of the same task, or the encoder of a run of task=masked_words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, check_held_out, finished, open_run
from imdbattn.settings.keys import as_dict, as_text, digest, without
from imdbattn.settings.safety import read_json
from imdbattn.tasks.build import check_vectors, load_weights, read_checkpoint, reason, weights_and_facts
from imdbattn.tasks.learner import Learner

ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # of `model`, that `init` must share
UNUSED = ("head.", "pooling.")  # prefixes of pretrained weights that are not used: the classifier has its own
PREFIX = "net.encoder."  # of the names of the encoder's weights in a run of task=masked_words


def start_of(
    cfg: Any, corpus: Any, resumed: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], bool | None]:
    """Weights of the run `init` by their names in the net, facts of their checkpoint, and whether they are all weights.

    None instead of the last: there are none, or they are in `resumed`, the checkpoint of a run that `init` initialized.
    Among the facts, `start` is six hex digits of the settings of the run `init`.
    Raises UserError unless it is a finished run of the same task, or for a classifier of task=masked_words with the
    same encoder, that has the same vectors and was not trained on items of this run's validation or test split.
    """
    if not cfg.init:
        return {}, {}, None
    if resumed:
        return *weights_and_facts(resumed), None
    task = "masked_words" if cfg.task == "reviews" else cfg.task
    run, remedy = cfg.init, f"train one, task={task} hydra.run.dir=runs/{task}, or set init=null"
    if not finished(Path(run)):
        raise UserError(f"init={run} is not a folder with a finished run: {remedy}")
    other, checkpoint = open_run(run, cfg.trust, as_dict(cfg))
    settings, whole = as_dict(other), other.task == cfg.task
    if not whole and (cfg.task, other.task) != ("reviews", "masked_words"):
        raise UserError(f"init={run} is a run of task={other.task}: {remedy}")
    if not whole:
        check_encoder(run, settings["model"], as_dict(cfg.model))
    content, metrics = read_checkpoint(checkpoint, remedy), read_json(Path(run) / "metrics.json")
    weights, facts = content["state_dict"], content["hyper_parameters"]
    if "vectors" in facts:
        check_vectors(f"init={run}", facts["vectors"], corpus.glove.fingerprint)
    check_held_out(f"init={run}", {key: metrics.get(key) for key in FINGERPRINT.values()}, corpus.fingerprints)
    prefix = "net." if whole else PREFIX
    names = {name: name.removeprefix(prefix) for name in weights if name.startswith(prefix)}
    used = {short: weights[name] for name, short in names.items() if whole or not short.startswith(UNUSED)}
    if settings["data"].get("fold"):  # the same digest for all folds
        settings["data"]["fold"] = None
    start = digest(settings | {"init": facts.get("start")})  # of the run that it started from, in any folder
    return used, {**facts, "start": start}, whole


def load_start(module: Learner, weights: Mapping[str, Tensor], facts: Mapping[str, Any], whole: bool | None) -> None:
    """Loads what `start_of` returns into an untrained model. Raises UserError naming the first that does not fit."""
    run, net = f"init={module.cfg.init}", module.net
    if "start" in facts:
        module.hparams["start"] = facts["start"]
    if whole is None:
        return
    for key in ("source_symbols", "target_symbols"):
        if facts.get(key) != module.hparams.get(key):
            raise UserError(f"{run} has other {key.replace('_', ' ')}: train both on the same data")
    own = net.state_dict()
    for name in dict.fromkeys([*own, *weights]) if whole else weights:
        here, there = (str(tuple(one[name].shape)) if name in one else "missing" for one in (own, weights))
        if here != there:
            raise UserError(f"{run} has another shape: its {name} is {there}, that of this model {here}")
    constants = {name for name, one in net.named_buffers() if one.is_floating_point()}  # such as the vectors' scale
    try:
        load_weights(net, {name: weights[name] for name in weights if name not in constants}, strict=False)
    except ValueError as error:
        raise UserError(f"{run} cannot be used ({reason(error)[:300]}): train it again") from error


def check_encoder(run: str, pretrained: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raises UserError unless the `model` settings of a run describe the same encoder as those of this run."""
    old, new = (
        without({key: one.get(key) for key in ENCODER}, "layer.dropout", "embedding.mixout")
        for one in (pretrained, model)
    )
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            values = f"model.{key}={as_text(old.get(key))}, but this model has {as_text(new.get(key))}"
            raise UserError(f"init={run} has {values}: train both with the same encoder")
