"""The encoder of a finished run of task=masked_words, from which `init` starts a classifier."""

from pathlib import Path
from typing import Any

from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, check_held_out, finished, open_run
from imdbattn.settings.keys import as_text, digest, without
from imdbattn.settings.safety import read_json
from imdbattn.tasks.build import read_checkpoint, reason

ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # settings that both must share
PREFIX, UNUSED = "net.encoder.", ("head.", "pooling.")  # prefixes of its weights' names


def pretrained_encoder(cfg: Any, corpus: ReviewCorpus) -> tuple[dict[str, Tensor], str]:
    """The encoder of the run `init`, by its weights' names in a classifier, and six hex digits of that run's settings.

    Raises UserError unless it is a finished run of task=masked_words with the same encoder and vectors that has not
    read reviews of this run's validation or test.
    """
    run, way_out = cfg.init, "train one, task=masked_words hydra.run.dir=runs/masked_words, or set init=null"
    folder = Path(run)
    if not finished(folder):
        raise UserError(f"init={run} is not a folder with a pretrained encoder: {way_out}")
    pretraining, checkpoint = open_run(run, cfg.trust, cfg.model_dump())
    if pretraining.task != "masked_words":
        raise UserError(f"init={run} is a run of task={pretraining.task}: {way_out}")
    old, new = (
        without({key: model.get(key) for key in ENCODER}, "layer.dropout", "embedding.mixout")
        for model in (pretraining.model_dump()["model"], cfg.model_dump()["model"])
    )
    if different := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
        old_text, new_text = (as_text(settings.get(different[0])) for settings in (old, new))
        raise UserError(
            f"init={run} has model.{different[0]}={old_text}, but this model has {new_text}: train both with the same "
            "encoder"
        )
    try:
        metrics = read_json(folder / "metrics.json")
        content = read_checkpoint(checkpoint, way_out)
        weights, vectors = content["state_dict"], content["hyper_parameters"]["vectors"]
        held_out = {key: metrics[key] for key in FINGERPRINT.values()}
    except Exception as error:
        raise UserError(f"init={run} cannot be read ({reason(error)[:300]}): {way_out}") from error
    if vectors != corpus.glove.fingerprint:
        raise UserError(
            f"init={run} was trained on vectors with fingerprint {vectors}, but these have {corpus.glove.fingerprint}: "
            "set data.glove as in its config.yaml"
        )
    check_held_out(f"init={run}", held_out, corpus.fingerprints)
    names = {name: name.removeprefix(PREFIX) for name in weights if name.startswith(PREFIX)}
    encoder = {short: weights[name] for name, short in names.items() if not short.startswith(UNUSED)}
    settings = pretraining.model_dump()
    if settings["data"].get("fold"):  # the same digest for all folds
        settings["data"]["fold"] = None
    return encoder, digest(settings)
