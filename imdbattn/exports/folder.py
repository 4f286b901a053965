"""Writes a trained model as a folder that needs no wheel, cache or network, and reads it.

model.safetensors  config.json  tokenizer.json  metrics.json  checksums.json  README.md
On request also model.pt2 and model.onnx.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import safetensors.torch
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Normalizer, Replace
from tokenizers.normalizers import Sequence as Rewrites

from imdbattn.data.sources.custom import source_name
from imdbattn.data.tokenizer import FIRST_WORD, FULL_WIDTH, RULES, UNK, pipeline_of
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.exports.vectors import VECTORS, choose_vectors, with_table
from imdbattn.folders.run import EXPORTED, Run
from imdbattn.folders.run_folder import write_json
from imdbattn.io.files import (
    SavedNet,
    Weights,
    check_checksums,
    read_json,
    with_home,
    write_checksums,
    writing_into,
)
from imdbattn.report.pages import escaped, render
from imdbattn.settings.command_settings import ExportSettings
from imdbattn.settings.keys import NestedDict
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tasks.task import settings_of, task_of

WEIGHTS = "model.safetensors"
WORDS = "tokenizer.json"
REMEDY = "export the model again, or copy its whole folder again"


# --- writing --------------------------------------------------------------------------------------


def write_export(predictor: Predictor, options: ExportSettings) -> NestedDict:
    """Writes the model of the run or export `options.run` into the folder `options.out`, and
    returns facts about its vectors, none for an encoder-decoder.

    The test reviews of the run, or its validation reviews if it has no others, are labeled by the
    run and by the export. With vectors=all and precision=float32 all predictions are the run's own,
    bit for bit. A model that was read from an export keeps its vectors. If anything fails, `out` is
    not written. Raises UserError for wrong input, or if `out` exists and is not an empty folder.
    """
    run, out = Run(options.run), with_home(options.out).resolve()
    check_out(out)
    metrics = read_json(run.folder / "metrics.json", "finish the run, imdbattn.train resume=...")
    facts: NestedDict = {}
    with complete_folder(out) as folder:
        if isinstance(predictor, ReviewPredictor):
            predictor, facts = choose_vectors(predictor, run, metrics, options)
            write_classifier(folder, predictor, facts["precision"])
        else:
            write_weights(folder, predictor.net.state_dict())
        if options.graph or options.onnx:
            write_graphs(folder, predictor, options)
        settings = portable(predictor.settings.dump())
        given_data, data = data_name(predictor.settings.dump()), data_name(settings)
        metrics["test_set"] = metrics["test_set"].replace(given_data, data)
        write_json(folder / "metrics.json", metrics)
        config = {
            "model_type": "imdbattn",
            "version": version("imdbattn"),
            "settings": settings,
            "metadata": dict(predictor.metadata),
            "export": facts,
        }
        write_json(folder / EXPORTED, config)
        write_checksums(folder)
        (folder / "README.md").write_text(card(predictor, metrics, facts), "utf-8")
    return facts


def write_classifier(folder: Path, predictor: ReviewPredictor, precision: str) -> None:
    """Writes the weights, the vectors in this precision, and the words."""
    vectors_VD = predictor.net.embedding.vectors_VD.to(getattr(torch, precision))
    write_weights(folder, predictor.net.state_dict() | {VECTORS: vectors_VD})
    words = tokenizer_json(predictor.settings.data.tokenizer, predictor.vectors.words)
    (folder / WORDS).write_text(words, "utf-8")


def write_weights(folder: Path, weights: Weights) -> None:
    tensors = {name: weight.cpu().contiguous() for name, weight in weights.items()}
    # a file that save_file writes is closed to other users
    (folder / WEIGHTS).write_bytes(safetensors.torch.save(tensors, {"format": "pt"}))


def write_graphs(folder: Path, predictor: Predictor, options: ExportSettings) -> None:
    """Writes the graphs that the options name. Raises UserError for a recurrent net, such as any
    encoder-decoder.
    """
    from imdbattn.exports.graph import to_onnx, to_program  # other exports do not wait for this

    classifier = cast(ReviewPredictor, predictor)
    program = to_program(classifier)
    if options.graph:
        torch.export.save(program, folder / "model.pt2")
    if options.onnx:
        to_onnx(classifier, program, folder / "model.onnx")


def check_out(out: Path) -> None:
    """Raises UserError unless `out` is absent or an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"out={out} exists: choose another name, or remove it")


@contextmanager
def complete_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `out` at the end, unless an exception is
    raised.
    """
    prefix = f".{out.name}."
    with writing_into(out.parent), TemporaryDirectory(dir=out.parent, prefix=prefix) as folder:
        new = Path(folder, "new")  # the temporary folder itself is closed to other users
        new.mkdir()
        yield new
        new.rename(out)


def portable(settings: NestedDict) -> NestedDict:
    """Returns the settings without folders, accounts and callbacks of this machine, except the
    arguments of custom tokenizers and parts, which the model needs. Changes `settings` in place.
    """
    data = settings["data"]
    for group in (settings, data, data.get("vectors", {})):
        for key in ("init", "path", "extra", "source"):
            if group.get(key):
                group[key] = without_folders(group[key])
    for key in ("callbacks", "default_root_dir"):
        settings["trainer"].pop(key, None)
    if data.get("tokenizer") == "torchtext":  # it gives the same words without torchtext
        data["tokenizer"] = "basic_english"
    if "cache_dir" in data:
        data["cache_dir"] = None
    return settings | {"logger": {}, "resume": None, "trust": None, "overrides": []}


def without_folders(value: Any) -> Any:
    """Returns a setting, or a group of settings, with the name of a file instead of each absolute
    path.
    """
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    is_path = isinstance(value, str) and with_home(value).is_absolute()
    return Path(value).name if is_path else value


def data_name(settings: NestedDict) -> str:
    """Returns how the name of the test set begins, if it may contain folders."""
    source = settings["data"].get("source")
    return source_name(source) if isinstance(source, dict) else settings["data"].get("path") or ""


def tokenizer_json(name: object, words: Sequence[str]) -> str:
    """Returns the tokenizer and the words that have vectors, as JSON of the library `tokenizers`.

    For a custom callable, only the words are written: config.json has its name. The library
    lower-cases a capital sigma at the end of a word differently.
    """
    pipeline = pipeline_of(name) if isinstance(name, str) else Tokenizer(WordLevel())
    ids = {"<unk>": UNK, **dict(zip(words, count(FIRST_WORD), strict=False))}
    pipeline.model = WordLevel(ids, "<unk>")
    if isinstance(name, str):
        first: list[Normalizer] = [Lowercase()]
        if RULES[name].normalizes:
            first += [Replace(chr(wide), chr(narrow)) for wide, narrow in FULL_WIDTH.items()]
        pipeline.normalizer = Rewrites([*first, pipeline.normalizer])
    return pipeline.to_str()


def card(predictor: Predictor, metrics: NestedDict, facts: NestedDict) -> str:
    """Returns README.md with the header that the Hugging Face hub reads."""
    prefixes = {"validation": "val_", "test": "test_"}
    return render(
        Path(__file__).with_name("card.md.jinja"),
        settings=predictor.settings,
        metrics=metrics,
        facts=facts,
        scores={name: key for name, key in prefixes.items() if f"{key}accuracy" in metrics},
        labels=[escaped(label) for label in predictor.metadata.get("labels", ())],
        net=predictor.net,
    )


# --- reading --------------------------------------------------------------------------------------


def read_export(folder: Path | str, trust: str | list[str] | None = None) -> Predictor:
    """Reads the Predictor of an exported folder.

    trust: packages whose classes its settings may name.

    Raises UserError if a file has changed since it was written.
    """
    folder = with_home(folder)
    with wrapping_errors(f"{folder} is damaged", REMEDY):
        check_checksums(folder)
    settings = settings_of(Run(folder, trust))
    metadata = read_json(folder / EXPORTED)["metadata"]
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    predictor_class = task_of(settings).class_of("predictor", Predictor)
    if not issubclass(predictor_class, ReviewPredictor):
        return predictor_class.load(settings, SavedNet(tensors, metadata))
    vectors_VD = tensors.pop(VECTORS).float()
    ids = Tokenizer.from_file(str(folder / WORDS)).get_vocab()
    words = sorted((word for word in ids if ids[word] >= FIRST_WORD), key=ids.__getitem__)
    return with_table(settings, SavedNet(tensors, metadata), words, vectors_VD)
