"""Weights from checkpoints: of a run that is opened, and of the run that `init` names.

A training run without `init` loads this file only for its pictures.

A checkpoint contains tensors and plain values, never code. For its metadata see `Learner`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from imdbattn.data.corpus import Corpus
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.folders.run import Run
from imdbattn.io.files import Checkpoint, Metadata, SavedNet, Weights, read_checkpoint, read_json
from imdbattn.nn.ladder import HEAD
from imdbattn.settings.keys import (
    FINGERPRINT_KEYS,
    NestedDict,
    as_text,
    flat_without,
    is_in_groups,
    settings_digest,
)
from imdbattn.settings.schema import ModelSettings, TrainingSettings
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.task import settings_of, task_of

if TYPE_CHECKING:
    from imdbattn.tasks.learner import Learner

# The settings of `model` that must be equal in the run `init`
ENCODER_SETTINGS = ("embedding", "mixer", "net.width", "net.positions", "net.layers", "net.layer")
UNUSED = (f"{HEAD}.", "pooling.")  # a classifier does not use these weights of a pretrained encoder


def predictor_of(settings: TrainingSettings, checkpoint: Path) -> Predictor:
    """Returns the model in a checkpoint, for new texts. settings: its run's settings."""
    kind = task_of(settings).class_of("predictor", Predictor)
    return kind.load(settings, SavedNet.of(read_checkpoint(checkpoint)))


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Loads weights into a net. Raises an error unless they fit and are finite.

    Integer buffers map ids to rows of the net's tables; another mapping is refused.
    """
    rows = {
        name: weight.clone()
        for name, weight in net.state_dict().items()
        if weight.ndim and not weight.is_floating_point()  # a number is BatchNorm's count
    }
    net.load_state_dict(weights)
    for name, weight in net.state_dict().items():
        if not weight.isfinite().all():
            raise UserError(f"the weights {name} are not finite")
        if name in rows and not weight.equal(rows[name]):
            raise UserError(f"{name} has other words than this model: use the same data.extra")


def check_same(name: str, metadata: Metadata, current: Metadata) -> None:
    """Raises UserError if weights belong to other vectors or symbols: ids mean other words."""
    for key in ("vectors", "source_symbols", "target_symbols"):
        if metadata.get(key) != current.get(key):
            remedy = "use the same data, and data.vectors as in its config.yaml"
            raise UserError(f"{name} was trained with other {key.replace('_', ' ')}: {remedy}")


# --- init -----------------------------------------------------------------------------------------


def from_initial(
    learner_class: type["Learner"],
    settings: TrainingSettings,
    corpus: Corpus,
    resumed: Checkpoint | None,
) -> "Learner":
    """Returns a Learner of this class with the weights of the run `init`.

    resumed: the state from which the run continues, which contains its weights.
    """
    initial = SavedNet.of(resumed) if resumed else read_initial(settings, corpus)
    module = learner_class.new(settings, corpus, initial)
    if not resumed:
        load_initial(module, initial)
    module.hparams["init_digest"] = initial.metadata["init_digest"]
    return module


def read_initial(settings: TrainingSettings, corpus: Corpus) -> SavedNet:
    """Returns weights and metadata of the run `init`, of the same task or of task=masked_words.

    In the metadata, `init_digest` is a digest of that run's settings.
    Raises UserError for another encoder, or if it may have trained on the held-out splits.
    """
    init = str(settings.init)
    run = f"init={init}"
    metrics = read_json(
        Path(init) / "metrics.json", "init needs a finished run; null starts from new weights"
    )
    run_of_init = Run(init, settings.trust, settings.dump())
    checkpoint, other = run_of_init.existing_checkpoint, settings_of(run_of_init)
    weights, metadata = SavedNet.of(read_checkpoint(checkpoint))
    prefix = task_of(other).encoder_prefix
    if prefix and settings.task != other.task:
        theirs, ours = encoder_settings(other.model), encoder_settings(settings.model)
        if different := [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]:
            values = f"model.{different[0]}={as_text(theirs.get(different[0]))}"
            raise UserError(
                f"{run} has {values}, which differs from this model's: use the same encoder"
            )
        names = {name: name.removeprefix(prefix) for name in weights if name.startswith(prefix)}
        weights = {new: weights[old] for old, new in names.items() if not new.startswith(UNUSED)}
    for split, key in FINGERPRINT_KEYS.items():
        if metrics.get(key) != corpus.fingerprints[split]:
            raise UserError(
                f"{run} has another {split} split, and may have trained on this one: use the same"
                " data"
            )
    init_settings = other.dump() | {"init": metadata.get("init_digest")}
    if init_settings["data"].get("fold"):  # all folds have the same digest
        init_settings["data"]["fold"] = None
    return SavedNet(weights, {**metadata, "init_digest": settings_digest(init_settings)})


def encoder_settings(model: ModelSettings) -> NestedDict:
    """Returns the model settings, flat, on which the weights of the encoder depend."""
    settings = flat_without(model.dump(), "net.layer.dropout", "embedding.mixout")
    return {key: value for key, value in settings.items() if is_in_groups(key, *ENCODER_SETTINGS)}


def load_initial(module: "Learner", initial: SavedNet) -> None:
    """Loads what `read_initial` returns into an untrained Learner.

    Raises UserError for other vectors or symbols, and weights that do not fit.
    """
    run, net, untrained = f"init={module.settings.init}", module.net, module.net.state_dict()
    check_same(run, initial.metadata, module.hparams)
    # The vectors' scale, for example, is a constant.
    buffers = {name for name, buffer in net.named_buffers() if buffer.is_floating_point()}
    constants = {name: untrained[name] for name in buffers & untrained.keys()}
    is_encoder = "labels" in module.hparams and "labels" not in initial.metadata
    rest = untrained if is_encoder else {}  # the encoder does not have these
    with wrapping_errors(f"{run} does not fit this model"):
        load_weights(net, {**rest, **initial.weights, **constants})
