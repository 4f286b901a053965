"""Writes a trained model as a folder that needs no wheel, cache or network, and reads it.

model.safetensors  config.json  tokenizer.json  README.md, and on request model.pt2 and model.onnx

Shape suffixes: V rows of the vectors of the run, K rows that are kept, P phrases.
"""

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Rewrites
from torch import Tensor

import imdbattn
from imdbattn.data.corpus import read_texts
from imdbattn.data.glove import Glove
from imdbattn.data.tokens import FIRST_WORD, UNK, pipeline_of
from imdbattn.errors import UserError
from imdbattn.files import make_folder, regular_file, sha256_of, write_atomically, writing_into
from imdbattn.pages import render
from imdbattn.run_folder import FINGERPRINT, SPLIT_FILES, write_json
from imdbattn.settings.keys import overlay
from imdbattn.settings.safety import plain_settings, read_json
from imdbattn.settings.schema import Settings, check_run
from imdbattn.tasks.review_predictor import ReviewPredictor
from imdbattn.tasks.reviews import batch_options, load_classifier, trained_words
from imdbattn.tasks.seq2seq import TASK as SEQ2SEQ
from imdbattn.tasks.seq2seq import Seq2SeqPredictor
from imdbattn.tasks.task import Predictor, task_of

log = logging.getLogger(__name__)

KIND, FORMAT = "imdbattn", 1  # model_type in config.json, and the version of the folder's format
CONFIG, WEIGHTS, WORDS, CARD = "config.json", "model.safetensors", "tokenizer.json", "README.md"
PROGRAM, ONNX = "model.pt2", "model.onnx"
VECTORS, SLOTS, PHRASES = (
    "embedding.vectors_VD",
    "embedding.slot_V",
    "context.phrases.keys_P",
)  # tensors with a row per word
WAY_OUT = "export the model again, or copy its whole folder again"


# --- writing ---------------------------------------------------------------------------------------------------------


def write_export(
    predictor: Any,
    out: Path | str,
    run_folder: Path,
    vectors: str = "training",
    precision: str = "auto",
    graph: bool = False,
    onnx: bool = False,
) -> dict[str, Any]:
    """Writes the model of a finished run into the folder `out`, and returns the facts that config.json has of it.

    run_folder: of the predictor. Its test reviews, or those of validation, are labelled by the export and by the run.
    vectors: "training" keeps the words of the training reviews, and reads others as <unk>; "all" keeps all words.
    precision: of the vectors; "auto" is float16 if that changes no label of those reviews, else float32.
    graph, onnx: also write model.pt2 (torch.export) and model.onnx.

    With vectors="all" and precision="float32" all predictions are the run's own, bit for bit. An export that stood in
    `out` is replaced at the end, and stays as it is if anything fails. A model that was read from an export is copied.
    Raises UserError for wrong input, or if `out` holds anything else.
    """
    for name, value, choices in (
        ("vectors", vectors, ("training", "all")),
        ("precision", precision, ("auto", "float32")),
    ):
        if value not in choices:
            raise UserError(f"{name}={value} must be one of {', '.join(choices)}")
    out = Path(out).expanduser().resolve()
    check_out(out)
    if is_export(run_folder):
        return copy_export(run_folder, out, vectors)
    metrics = read_json(run_folder / "metrics.json", "finish the run first: imdbattn.train resume=...")
    facts: dict[str, Any] = {}
    if predictor.cfg.task == "reviews":
        predictor, facts = smaller(predictor, run_folder, metrics, vectors, precision)
    with replacing(out) as folder:
        write_atomically(folder / WEIGHTS, safetensors.torch.save(tensors_of(predictor, facts), {"format": "pt"}))
        if predictor.cfg.task == "reviews":
            write_atomically(folder / WORDS, tokenizer_json(predictor.cfg.data.tokenizer, predictor.glove.words))
        if graph or onnx:
            from imdbattn.export.graph import to_onnx, to_program  # half a second, and an extra

            if graph:
                torch.export.save(to_program(predictor), folder / PROGRAM)
            if onnx:
                to_onnx(predictor, folder / ONNX)
        names = {key: value for key, value in predictor.module.hparams.items() if key != "config"}
        parts = {"settings": portable(predictor.cfg.model_dump()), "facts": names, "export": facts, "metrics": metrics}
        write_config(folder, parts)
        write_atomically(folder / CARD, card(predictor, metrics, facts))
    return facts


def check_out(out: Path) -> None:
    """Raises UserError unless `out` is absent, empty, or an export and nothing else."""
    with writing_into(out, "choose another folder"):
        files = {file.name for file in out.iterdir()} if out.exists() else set()
    is_ours = False
    with suppress(UserError):
        is_ours = CONFIG in files and read_json(out / CONFIG).get("model_type") == KIND
    if others := files - ({CONFIG, WEIGHTS, WORDS, CARD, PROGRAM, ONNX} if is_ours else set()):
        raise UserError(f"{out} holds {min(others)}, which is no part of an exported model: choose another folder")


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A temporary folder that replaces `out` at the end, unless an exception is raised."""
    new, old = (out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.{end}") for end in ("tmp", "old"))
    make_folder(new, "choose another folder")
    with writing_into(out.parent, "choose another folder"):
        try:
            yield new
            if out.exists():
                out.rename(old)
            new.rename(out)
        finally:
            if old.exists() and not out.exists():
                old.rename(out)
            shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def copy_export(source: Path, out: Path, vectors: str) -> dict[str, Any]:
    """Copies an export that was read. Raises UserError for vectors="all" if it has fewer."""
    config = read_config(source)
    if vectors == "all" and config["export"].get("vectors") != "all":
        raise UserError(f"{source} has the vectors of its training words only: vectors=all needs the run folder")
    with replacing(out) as folder:
        for name in (*config["files"], CARD):
            with suppress(FileNotFoundError):  # the card
                shutil.copyfile(source / name, folder / name)
    return config["export"]


def portable(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without folders, accounts and callbacks of the machine that trained."""
    data = dict(settings["data"]) | {"cache_dir": None}
    named = {key: Path(data[key]).name for key in ("path", "unlabelled") if data.get(key)}
    if path := (data.get("glove") or {}).get("path"):
        named["glove"] = {"path": Path(path).name}
    if data.get("tokenizer") == "torchtext":  # the same words, without torchtext
        named["tokenizer"] = "basic_english"
    trainer = {key: value for key, value in settings["trainer"].items() if key not in ("callbacks", "default_root_dir")}
    start = {"init": Path(settings["init"]).name} if settings.get("init") else {}
    nothing = {"logger": {"name": "none"}, "resume": None, "trust": None}
    data = {key: value for key, value in overlay(data, named).items() if key in settings["data"]}
    return settings | {"data": data, "trainer": trainer} | start | nothing


def write_config(folder: Path, parts: Mapping[str, Any]) -> None:
    """Writes config.json, with the checksum of each file but the card, which may be edited, and of itself."""
    config = {"model_type": KIND, "format": FORMAT, "version": imdbattn.__version__, **parts}
    files = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
    write_json(folder / CONFIG, config | {"files": files, "checksum": digest(config | {"files": files})})


def digest(config: Mapping[str, Any]) -> str:
    """The checksum of config.json without its own."""
    parts = {key: value for key, value in config.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def tokenizer_json(name: str, words: Sequence[str]) -> str:
    """The tokenizer as the library `tokenizers` reads it, with the words that have vectors."""
    pipeline = pipeline_of(name)
    vocabulary = {"<unk>": UNK, **dict(zip(words, count(FIRST_WORD), strict=False))}
    pipeline.model = WordLevel(vocabulary, "<unk>")
    pipeline.normalizer = Rewrites([Lowercase(), pipeline.normalizer])
    return pipeline.to_str()


def tensors_of(predictor: Any, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of the net and its vectors."""
    net = predictor.module.net
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in net.state_dict().items()}
    if "precision" in facts:
        tensors[VECTORS] = net.embedding.vectors_VD.to(getattr(torch, facts["precision"])).contiguous()
    return tensors


# --- which words, in which precision ---------------------------------------------------------------------------------


def smaller(
    predictor: Any, run_folder: Path, metrics: Mapping[str, Any], vectors: str, precision: str
) -> tuple[Any, dict[str, Any]]:
    """The predictor with the vectors to export, and what was found out about them. For the arguments see `write_export`."""
    if not hasattr(predictor.module.net, "embedding"):
        raise UserError(f"model={predictor.cfg.model.name} has no `embedding`, whose vectors would be exported")
    words_K = training_words(predictor, metrics) if vectors == "training" else None
    note = None
    if vectors == "training" and words_K is None:
        note = "all words are kept, because the training reviews are not available here, or have changed"
    single = predictor if words_K is None else with_words(predictor, words_K)
    split, texts = next(
        (
            (split, read_reviews(file))
            for split, (_, name) in SPLIT_FILES.items()
            if (file := run_folder / name).exists()
        ),
        (None, []),
    )
    if texts:
        log.info("Labelling the %d %s reviews of the run with the exported vectors", len(texts), split)
    own = labels_of(predictor, texts)
    labels = own if words_K is None else labels_of(single, texts)
    chosen, dtype = single, "float32"
    if precision == "auto" and texts:
        half = with_words(single, None, torch.float16)
        if half.glove.vectors.max() < np.inf and labels_of(half, texts) == labels:
            chosen, dtype = half, "float16"
    facts = {
        "vectors": "all" if words_K is None else "training",
        "words": len(chosen.glove.words),
        "of_words": len(predictor.glove.words),
        "precision": dtype,
        "split": split,
        "reviews": len(texts),
        "changed_labels": sum(label != before for label, before in zip(labels, own, strict=True)),
        "note": note,
    }
    return chosen, facts


def labels_of(predictor: Any, texts: Sequence[str]) -> list[str]:
    return [result.output for result in predictor.label(texts)] if texts else []


def read_reviews(file: Path) -> list[str]:
    """The texts of a split that a run folder stores. Raises UserError if they cannot be read."""
    try:
        return read_texts(regular_file(file))
    except (OSError, ValueError, KeyError) as error:  # pyarrow's are subclasses
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{file} cannot be read ({reason}): restore it, or remove it to export without it") from error


def training_words(predictor: Any, metrics: Mapping[str, Any]) -> Tensor | None:
    """Ids of the words of the training reviews, ascending; None if these are not available, or not the run's."""
    trained = trained_words(predictor.module.net.state_dict(), "embedding")
    if trained is not None:
        return trained
    try:
        corpus: Any = task_of(predictor.cfg).prepare(predictor.cfg.data)
    except UserError as error:
        log.warning("The training reviews are not available: %s", error)
        return None
    recorded = {"source_key": corpus.source_key} | {
        FINGERPRINT[name]: corpus.fingerprints[name] for name in FINGERPRINT
    }
    if corpus.glove.fingerprint != predictor.glove.fingerprint or any(metrics.get(k) != v for k, v in recorded.items()):
        log.warning("The training reviews have changed since the run")
        return None
    ids = corpus.splits["train"].ids.unique()
    return ids[ids >= FIRST_WORD].long()


def with_words(predictor: Any, words_K: Tensor | None, dtype: torch.dtype = torch.float32) -> Any:
    """A predictor with the same weights that knows the words with these ids only, and rounds their vectors.

    words_K: ascending; None for all.
    """
    net, words = predictor.module.net, predictor.glove.words
    tensors = dict(net.state_dict())
    vectors_KD = net.embedding.vectors_VD
    if words_K is not None:
        rows_K = torch.cat([torch.arange(FIRST_WORD), words_K])
        words = [words[row - FIRST_WORD] for row in words_K.tolist()]
        vectors_KD = vectors_KD[rows_K]
        if SLOTS in tensors:
            tensors[SLOTS] = tensors[SLOTS][rows_K]
        if PHRASES in tensors:
            tensors[PHRASES] = renumbered(tensors[PHRASES], rows_K, len(net.embedding.vectors_VD))
    names = {key: value for key, value in predictor.module.hparams.items() if key != "config"}
    return build(predictor.cfg, Path(WEIGHTS), tensors, names, vectors_KD.to(dtype).float(), words)


def renumbered(keys_P: Tensor, rows_K: Tensor, rows: int) -> Tensor:
    """Keys of phrases (nn/beyond/phrases.phrase_keys) for ids that are places in `rows_K`, of `rows` ids before."""
    place_V = torch.zeros(rows, dtype=torch.int64)
    place_V[rows_K] = torch.arange(len(rows_K))
    new_P, factor = torch.zeros_like(keys_P), 1
    while keys_P.any():
        new_P += place_V[keys_P % rows] * factor
        keys_P, factor = keys_P // rows, factor * len(rows_K)
    return new_P


# --- the card --------------------------------------------------------------------------------------------------------


def card(predictor: Any, metrics: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """README.md with the header that the Hugging Face hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    cfg, reviews = predictor.cfg, predictor.cfg.task == "reviews"
    scores = [
        (
            split,
            100 * metrics[f"{key}_accuracy"],
            metrics[f"{key}_loss"],
            metrics[f"{key}_reviews"],
            metrics.get(FINGERPRINT[split]),
        )
        for split, key in (("validation", "val"), ("test", "test"))
        if f"{key}_accuracy" in metrics
    ]
    task = "text-classification" if reviews else "text2text-generation"
    results = [
        EvalResult(task, cfg.data.source, metrics["test_set"], "accuracy", accuracy / 100, dataset_split=split)
        for split, accuracy, *_ in scores
    ]
    header = ModelCardData(
        library_name=KIND,
        pipeline_tag=task,
        tags=[KIND, cfg.model.name],
        model_name=cfg.model.name,
        eval_results=results,
    )
    parameters = metrics.get("parameters") or sum(p.numel() for p in predictor.module.net.parameters())
    values = {"cfg": cfg, "metrics": metrics, "facts": facts, "scores": scores, "parameters": parameters}
    labels = predictor.module.hparams.get("labels", [])
    return render(Path(__file__).with_name("card.md.jinja"), header=header.to_yaml(), labels=labels, **values)


# --- reading ---------------------------------------------------------------------------------------------------------


def is_export(folder: Path | str) -> bool:
    """Whether a folder is an exported model rather than a run folder."""
    with suppress(OSError):
        return (Path(folder).expanduser() / CONFIG).is_file()
    return False


def read_export(folder: Path | str, trust: Any = None) -> Predictor:
    """The model of an exported folder, for new texts. trust: packages whose classes its settings may name.

    Every file is checked before it is used. Raises UserError if one is missing, damaged or of another version.
    """
    folder = Path(folder).expanduser()
    config, file = read_config(folder), folder / CONFIG
    cfg = check_run(plain_settings(config.get("settings"), file), file, trust)
    for name in (WEIGHTS, *([WORDS] if cfg.task == "reviews" else [])):
        try:
            if sha256_of(regular_file(folder / name)) != config["files"][name]:
                raise ValueError("it has changed since it was written")
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{folder / name} cannot be used ({reason}): {WAY_OUT}") from error
    try:
        tensors = safetensors.torch.load_file(folder / WEIGHTS)
        if cfg.task != "reviews":
            return build(cfg, folder / WEIGHTS, tensors, config["facts"])
        vectors_VD = tensors.pop(VECTORS).float()
        ids = Tokenizer.from_file(str(folder / WORDS)).get_vocab()
        words = sorted((word for word in ids if ids[word] >= FIRST_WORD), key=ids.__getitem__)
        if vectors_VD.ndim != 2 or len(vectors_VD) != FIRST_WORD + len(words) or not vectors_VD.isfinite().all():
            raise ValueError("its vectors are not finite, or not one for each word")
        return build(cfg, folder / WEIGHTS, tensors, config["facts"], vectors_VD, words)
    except UserError:
        raise
    except Exception as error:  # the libraries' own
        raise UserError(f"{folder} cannot be used ({' '.join(str(error).split())[:200]}): {WAY_OUT}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of an export. Raises UserError for one that is damaged, of another version or another program."""
    config, file = read_json(folder / CONFIG, WAY_OUT), folder / CONFIG
    if config.get("model_type") != KIND:
        raise UserError(f"{file} is not that of an exported model: give a run folder, or a folder that export wrote")
    if config.get("format") != FORMAT:
        raise UserError(
            f"{file} has format {config.get('format')}, and this version reads {FORMAT}: install imdbattn "
            f"{config.get('version')}, or export the model again"
        )
    if config.get("checksum") != digest(config):
        raise UserError(f"{file} has changed since it was written: {WAY_OUT}")
    return config


def build(
    cfg: Settings,
    file: Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    vectors_VD: Tensor | None = None,
    words: Sequence[str] = (),
) -> Any:
    """A predictor from its weights. facts: as in a checkpoint. vectors_VD, words: of a classifier."""
    content = {"state_dict": {f"net.{name}": weight for name, weight in tensors.items()}, "hyper_parameters": facts}
    if vectors_VD is None:
        return Seq2SeqPredictor(cfg, SEQ2SEQ.load(cfg, file, content=content))
    # The mean and the standard deviation are among the weights.
    zeros_D = np.zeros(vectors_VD.shape[1], np.float32)
    glove = Glove(file.parent, facts["vectors"], vectors_VD.numpy(), zeros_D, zeros_D + 1)
    vars(glove)["words"] = list(words)  # instead of those in a cache folder
    return ReviewPredictor(cfg, load_classifier(cfg, file, glove, content), glove, batch_options(cfg))
