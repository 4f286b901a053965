"""From settings to objects. The only module that calls Hydra's `instantiate`."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra._internal.utils import _locate
from hydra.utils import instantiate

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.glove import Glove
from imdbattn.data.pairs import PairCorpus
from imdbattn.data.ragged import Ragged, as_tensor
from imdbattn.data.sampling import default_budget
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.data.vocabulary import Vocabulary
from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Context
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.nn.beyond.phrases import Phrases, count_phrases, folds_of
from imdbattn.nn.encoder_decoder import EncoderDecoder
from imdbattn.nn.vectors import Embedding
from imdbattn.run_folder import FINGERPRINT, finished, open_run
from imdbattn.settings.keys import as_text, digest, without, words_before
from imdbattn.settings.safety import read_json
from imdbattn.tasks.learner import Learner, ReviewClassifier
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.masked_words import WordGuesser
from imdbattn.tasks.seq2seq import SequenceWriter
from imdbattn.tasks.weights import load_weights, read_checkpoint

log = logging.getLogger(__name__)

ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # settings that pretraining shares
NO_PARTS = ("name", "after", "word_dropout", "embedding", "phrases")  # settings of `model` that name no class
CONTEXT = ("channels", "convolution")  # those of nn.beyond.context.Context
PARTS = {"trainer.callbacks": L.Callback}  # lists within a group of settings that hold objects of another kind


def make(settings: Mapping[str, Any], what: str, kind: type) -> Any:
    """`instantiate`, if every `_target_` is a class of the given kind, never a function.

    settings: the user's own, or those of a run folder that `refuse_untrusted` has let pass.
    Raises UserError naming `what` for a target that is not, or what the class itself complains about.
    """
    check_targets(settings, what, kind)
    try:
        return instantiate(settings, _convert_="all")
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        raise UserError(f"{what}: {reason(error)}") from error


def check_targets(node: Any, key: str, kind: type) -> None:
    """Raises UserError for a `_target_` that cannot be imported, or is not a subclass of `kind`."""
    if isinstance(node, Mapping):
        if (target := node.get("_target_")) is not None:
            try:
                found = _locate(target)  # `get_object` would print the error, too
            except Exception as error:  # whatever the module raises
                raise UserError(f"{key}._target_={target} cannot be imported: {reason(error)}") from error
            if not (isinstance(found, type) and issubclass(found, kind)):
                raise UserError(f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}")
        for name, value in node.items():
            check_targets(value, place := f"{key}.{name}", PARTS.get(place, kind))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            check_targets(value, f"{key}[{number}]", kind)
    elif isinstance(node, str) and "${" in node:  # `instantiate` would compute it
        raise UserError(f"{key} holds ${{...}}: these settings are plain values")


def reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


def build_data(cfg: Mapping[str, Any], corpus: ReviewCorpus, test_split: str = "test") -> BatchData:
    data = cfg["data"]
    longest, budget = data["max_tokens"], data["batch_tokens"]
    if budget is None:
        train = corpus.splits.get("train")  # other data that are scored have none
        budget = default_budget(0 if train is None else int(train.kept(train.lengths, longest).sum()))
    options = {"max_tokens": longest, "head_share": data["head_share"], "before": words_before(cfg)}
    options["multiple"] = data.get("pad_to", 1)  # runs of earlier versions have none
    dropout = {"word_dropout": data["word_dropout"]}
    return BatchData(corpus, budget, data["eval_batch_tokens"], cfg["seed"], test_split, options, dropout)


def build_pair_data(cfg: Mapping[str, Any], corpus: PairCorpus, test_split: str = "test") -> BatchData:
    data = cfg["data"]
    return BatchData(corpus, data["batch_tokens"], data["eval_batch_tokens"], cfg["seed"], test_split)


def build_net(
    model: Mapping[str, Any],
    glove: Glove,
    classes: int,
    tuned_R: torch.Tensor | None,
    phrases: Phrases | None = None,
) -> torch.nn.Module:
    """The classifier that the `model` settings describe; `tuned_R` are the ids of the words whose vectors train."""
    parts = {key: value for key, value in model.items() if key not in (*NO_PARTS, *CONTEXT)}
    additions = {key: value for key in CONTEXT if (value := model.get(key))}  # runs of earlier versions have none
    shift_D, scale_D = torch.zeros(glove.vectors.shape[1]), torch.ones(glove.vectors.shape[1])
    if model["embedding"]["standardize"]:
        shift_D, scale_D = torch.tensor(glove.mean_D), 1 / torch.tensor(glove.std_D)
    mixout = model["embedding"].get("mixout", 0.0)  # runs of earlier versions have none
    embedding = Embedding(as_tensor(glove.vectors), shift_D, scale_D, tuned_R, mixout)
    make_net, additions = (make(each, f"model={model['name']}", torch.nn.Module) for each in (parts, additions))
    context = {"context": partial(Context, phrases=phrases, **additions)} if additions or phrases else {}
    try:
        return make_net(embedding, classes, **context)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:  # the last for tables too large
        raise UserError(f"model={model['name']}: {reason(error)}") from error


def build_encoder_decoder(model: Mapping[str, Any], source: Vocabulary, target: Vocabulary) -> EncoderDecoder:
    """The encoder-decoder that the `model` settings describe."""
    parts = {key: value for key, value in model.items() if key not in ("name", "after")}
    try:
        net = make(parts, f"model={model['name']}", torch.nn.Module)(len(source), len(target))
    except (TypeError, ValueError) as error:
        raise UserError(f"model={model['name']}: {reason(error)}") from error
    if net.decoder.score is not None and not hasattr(net.decoder.score, "project_key"):
        raise UserError(
            f"model.score._target_={model['score']['_target_']} compares no query with keys: choose Dot, ScaledDot, "
            "Bilinear or Additive of imdbattn.nn.scores"
        )
    return net


def learner(kind: Any, cfg: Mapping[str, Any], net: torch.nn.Module, facts: Mapping[str, Any], **more: Any) -> Any:
    """A Lightning module of the given kind around a net; `facts` go into its checkpoints, beside the settings."""
    rest = {name: cfg[name] for name in ("warmup", "decay", "label_smoothing", "embedding_lr")}
    optimizer = make(cfg["optim"], "optim", torch.optim.Optimizer)
    return kind(net, optimizer, {"config": dict(cfg), **facts}, **rest, **more)


def build_module(
    cfg: Mapping[str, Any],
    net: torch.nn.Module,
    glove: Glove,
    labels: list[str],
    folds_N: torch.Tensor | None = None,
    start: str | None = None,
) -> ReviewClassifier:
    facts = {"vectors": glove.fingerprint, "labels": labels} | ({"start": start} if start else {})
    return learner(ReviewClassifier, cfg, net, facts, folds_N=folds_N)


def build_writer(cfg: Mapping[str, Any], source: Vocabulary, target: Vocabulary) -> SequenceWriter:
    facts = {"source_symbols": source.symbols, "target_symbols": target.symbols}
    return learner(SequenceWriter, cfg, build_encoder_decoder(cfg["model"], source, target), facts)


def seen_words(cfg: Mapping[str, Any], corpus: ReviewCorpus) -> torch.Tensor | None:
    """Ids of the words whose vectors train: those of the training texts; None where none do."""
    if not cfg["model"]["embedding"]["trainable"]:
        return None
    seen = corpus.splits["train"].ids.unique()
    return seen[seen >= FIRST_WORD].long()


def words_tuned(weights: Mapping[str, torch.Tensor], embedding: str) -> torch.Tensor | None:
    """Ids of the words whose vectors train in a net of these weights, None where none do. embedding: its name there."""
    slot_V = weights.get(f"{embedding}.slot_V")
    return None if slot_V is None else slot_V.nonzero()[:, 0]


def new_module(
    cfg: Mapping[str, Any], corpus: ReviewCorpus, begun: Mapping[str, Any] | None = None
) -> ReviewClassifier:
    """An untrained module for a corpus, or one whose encoder is that of the run `init`.

    begun: content of a checkpoint of this run, whose weights will follow: then the start is not needed any more.
    """
    tuned_R, name_of_start = seen_words(cfg, corpus), None
    start: dict[str, torch.Tensor] = {}
    if cfg.get("init"):
        if begun is None:
            start, name_of_start = pretrained_encoder(cfg, corpus)
            tuned_R = words_tuned(start, "embedding")  # with the words of data.unlabelled
        else:
            tuned_R = words_tuned(begun["state_dict"], "net.embedding")
            name_of_start = begun["hyper_parameters"].get("start")
    phrases = folds_N = None
    if asked := cfg["model"].get("phrases"):
        train = corpus.splits["train"]
        folds_N = folds_of(train.labels, asked["folds"])
        phrases = phrases_of(asked, train, len(corpus.label_names), len(corpus.glove.vectors))
    try:
        net = build_net(cfg["model"], corpus.glove, len(corpus.label_names), tuned_R, phrases)
        if start:
            load_weights(net, start, strict=False)
    except (IndexError, ValueError, RuntimeError) as error:
        if not start:
            raise
        raise UserError(f"init={cfg['init']} cannot be used ({reason(error)[:300]}): train it again") from error
    return build_module(cfg, net, corpus.glove, corpus.label_names, folds_N, name_of_start)


def pretrained_encoder(cfg: Mapping[str, Any], corpus: ReviewCorpus) -> tuple[dict[str, torch.Tensor], str]:
    """The encoder of the run `init`, by its weights' names in a classifier, and six hex digits of that run's settings.

    Raises UserError where it is no finished run of task=masked_words, has another encoder or other vectors, or may have
    read reviews that this run validates or tests with.
    """
    run, way_out = cfg["init"], "train one, task=masked_words hydra.run.dir=runs/masked_words, or set init=null"
    folder = Path(run)
    if not finished(folder):
        raise UserError(f"init={run} is no folder with a pretrained encoder: {way_out}")
    settings, checkpoint = open_run(run, cfg.get("trust"), cfg)
    if settings.get("task") != "masked_words":
        raise UserError(f"init={run} is a run of task={settings.get('task', 'reviews')}: {way_out}")
    theirs, ours = ({k: m.get(k) for k in ENCODER} for m in (settings["model"], cfg["model"]))
    mine, there = (without(encoder, "layer.dropout", "embedding.mixout") for encoder in (ours, theirs))
    for key in sorted({*mine, *there}):
        if mine.get(key) != there.get(key):
            different = f"model.{key}={as_text(there.get(key))}, and this model {as_text(mine.get(key))}"
            raise UserError(f"init={run} has {different}: train both alike")
    try:
        metrics = read_json(folder / "metrics.json")
        content = read_checkpoint(checkpoint, way_out)
        weights, vectors = content["state_dict"], content["hyper_parameters"]["vectors"]
        held_out = {split: metrics[name] for split, name in FINGERPRINT.items()}
    except Exception as error:
        raise UserError(f"init={run} cannot be read ({reason(error)[:300]}): {way_out}") from error
    if vectors != corpus.glove.fingerprint:
        raise UserError(
            f"init={run} was trained on vectors with fingerprint {vectors}, but these have {corpus.glove.fingerprint}: "
            "set data.glove as in its config.yaml"
        )
    for split, found in held_out.items():
        if found != corpus.fingerprints[split]:
            raise UserError(
                f"init={run} was trained beside another {split} split, and may have read reviews of this one: train "
                "both on the same data"
            )
    prefix, unused = "net.encoder.", ("head.", "pooling.")
    names = {name: name.removeprefix(prefix) for name in weights if name.startswith(prefix)}
    return {short: weights[name] for name, short in names.items() if not short.startswith(unused)}, digest(settings)


def build_guesser(
    cfg: Mapping[str, Any], glove: Glove, tuned_R: torch.Tensor | None, guessed_G: torch.Tensor, counts_G: torch.Tensor
) -> WordGuesser:
    """The encoder that the `model` settings describe, without what labels say of phrases, and its guessing head."""
    encoder = build_net({**cfg["model"], "phrases": None, "channels": {}}, glove, 2, tuned_R)
    net = MaskedWords(encoder, guessed_G, counts_G, len(glove.vectors))  # type: ignore[arg-type]
    return learner(WordGuesser, cfg, net, {"vectors": glove.fingerprint}, share=cfg["masked"]["share"])


def new_guesser(cfg: Mapping[str, Any], corpus: ReviewCorpus, begun: Mapping[str, Any] | None = None) -> WordGuesser:
    """An untrained one; the most frequent words of the training texts are masked and guessed."""
    counts_V = corpus.splits["train"].ids.bincount(minlength=len(corpus.glove.vectors))
    counts_V[:FIRST_WORD] = 0
    most = min(cfg["masked"]["words"], int((counts_V > 0).sum()))
    counts_G, guessed_G = counts_V.topk(most)
    return build_guesser(cfg, corpus.glove, seen_words(cfg, corpus), guessed_G, counts_G)


def trained_guesser(cfg: Mapping[str, Any], checkpoint: Path, glove: Glove) -> WordGuesser:
    """That of a finished run, in evaluation mode."""

    def module(weights: dict[str, Any], facts: dict[str, Any]) -> WordGuesser:
        guessed_G = weights["net.guessed_G"]
        tuned_R = words_tuned(weights, "net.encoder.embedding")
        return build_guesser(cfg, glove, tuned_R, guessed_G, torch.ones_like(guessed_G))

    return loaded(checkpoint, module)


def phrases_of(asked: Mapping[str, Any], train: Ragged, classes: int, rows: int) -> Phrases:
    """The phrases of the training reviews that `model.phrases` asks for. Raises UserError where ids are too many."""
    if rows ** asked["longest"] >= 2**63:
        raise UserError(
            f"model.phrases.longest={asked['longest']} is too long for {rows:,} vectors: "
            f"set it to {asked['longest'] - 1}"
        )
    words, review = train.words(asked["longest"] - 1)
    counted = words, review, train.labels, classes, rows, asked["min_reviews"], asked["folds"]
    return count_phrases(train.ids.long(), *counted)


def new_writer(cfg: Mapping[str, Any], corpus: PairCorpus, begun: Mapping[str, Any] | None = None) -> SequenceWriter:
    """The same for pairs."""
    return build_writer(cfg, corpus.source_vocabulary, corpus.target_vocabulary)


def trained_module(cfg: Mapping[str, Any], checkpoint: Path, glove: Glove) -> ReviewClassifier:
    """The module of a finished run, in evaluation mode. Needs no reviews, only the vectors.

    Reads tensors and plain values only, never code. Raises UserError when the file cannot be read, or belongs to
    another model or other vectors.
    """

    def module(weights: dict[str, Any], facts: dict[str, Any]) -> ReviewClassifier:
        phrases = None
        if asked := cfg["model"].get("phrases"):
            keys_P, log_counts_PC = (weights[f"net.context.phrases.{name}"] for name in ("keys_P", "log_counts_PC"))
            phrases = Phrases(keys_P, log_counts_PC, rows=len(glove.vectors), longest=asked["longest"])
        tuned_R, labels = words_tuned(weights, "net.embedding"), names_in(facts, "labels")
        net = build_net(cfg["model"], glove, len(labels), tuned_R, phrases)
        return build_module(cfg, net, glove, labels)

    return loaded(checkpoint, module)


def trained_writer(cfg: Mapping[str, Any], checkpoint: Path) -> SequenceWriter:
    """The same of an encoder-decoder, whose vocabularies are in the checkpoint."""

    def module(weights: dict[str, Any], facts: dict[str, Any]) -> SequenceWriter:
        source, target = (Vocabulary(names_in(facts, name)) for name in ("source_symbols", "target_symbols"))
        return build_writer(cfg, source, target)

    return loaded(checkpoint, module)


def loaded(checkpoint: Path, module_for: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Any:
    """What `module_for` makes for a checkpoint's weights and facts, with those weights, in evaluation mode.

    Raises UserError for a file that is damaged, of another model or version, or holds weights that are not finite.
    """
    way_out = "train again, or use the version that its environment.json names"
    content = read_checkpoint(checkpoint, way_out)
    try:
        weights = content["state_dict"]
        module: Learner = module_for(weights, content["hyper_parameters"])
        module.on_load_checkpoint(content)
        load_weights(module, weights)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{checkpoint} cannot be loaded: {reason(error)[:300]}; {way_out}") from error
    return module.eval()


def names_in(facts: Mapping[str, Any], name: str) -> list[str]:
    """The names that a checkpoint holds. Raises ValueError where they are not a list of different texts."""
    names = facts[name]
    if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
        raise ValueError(f"its {name} are not a list of names")
    if not 1 < len(names) == len(set(names)):
        raise ValueError(f"its {name} are not at least two different names")
    return names
