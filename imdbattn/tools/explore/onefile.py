"""Writes the interactive page, with trained classifiers, as one HTML file that needs no server.

Shape suffixes: V rows of the vectors, D width, K words that are kept, N reviews.
"""

import base64
import gzip
import hashlib
import html
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from imdbattn.data.sources.order_probe import SLOTS
from imdbattn.data.tokenizer import FIRST_WORD, RULES, pipeline_of
from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.exports.vectors import rounded, training_counts, with_words
from imdbattn.io.files import with_home, write_atomically
from imdbattn.nn.beyond.tuned_vectors import TunedEmbedding
from imdbattn.report.finished_runs import FinishedRun, SplitPredictions
from imdbattn.settings.keys import NestedDict
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tools.explore.description import described, offsets_VD, weights_of

Precision = Literal["float32", "float16"]
STATIC = Path(__file__).with_name("static")
ENTRY = "main.js"
GENERATOR_TAG = '<meta name="generator" content="imdbattn.explore">'
IMPORT = re.compile(r'^import (?:\* as (\w+)|\{ ([^}]*) \}) from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)


# --- the models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageModel:
    """A model of the page.

    Raises UserError, naming the model, if the page cannot compute it.
    """

    name: str  # how it is shown
    predictor: ReviewPredictor
    run: FinishedRun  # its run, or its export, which has no reviews

    def __post_init__(self) -> None:
        with wrapping_errors(self.name):
            described(self.predictor.net)
            tokenizer = self.predictor.settings.data.tokenizer
            if tokenizer not in RULES:
                raise UserError(f"the tokenizer {tokenizer} cannot run in the browser")


def test_reviews(run: FinishedRun, predictions: SplitPredictions) -> list[dict[str, Any]]:
    """Returns the row in the source, text and label of each test review.

    predictions: the predictions of the run for the test reviews.
    """
    texts = run.texts("test", predictions.rows_N)
    columns = zip(predictions.rows_N.tolist(), texts, predictions.labels_N, strict=True)
    labels = run.labels
    return [{"row": row, "text": text, "label": labels[index]} for row, text, index in columns]


def chosen_words(models: Sequence[PageModel], words: int | None) -> Tensor:
    """Returns the ids, sorted, of the words that the page keeps for models with one table, (K,).

    These are the `words` most frequent words of the training reviews, or, for None, all words that
    occur in them. If the training reviews of a model are not available, the first rows of the
    vectors are kept, which are ordered by frequency.
    """
    rows = len(models[0].predictor.vectors.table_VD)
    total_V = torch.zeros(rows, dtype=torch.int64)
    for model in models:
        counts_V = training_counts(model.predictor, model.run.metrics)
        if counts_V is None:
            return torch.arange(FIRST_WORD, rows)[:words]
        total_V += counts_V
    total_V[:FIRST_WORD] = 0
    by_count_V = total_V.argsort(descending=True, stable=True)
    return by_count_V[: int((total_V > 0).sum())][:words].sort().values


def with_page_words(
    predictor: ReviewPredictor, words_K: Tensor, precision: Precision
) -> ReviewPredictor:
    """Returns the predictor with the words that the page keeps, and its vectors rounded. Raises
    UserError if they have numbers that are too large for the precision.
    """
    dtype = getattr(torch, precision)
    small = rounded(with_words(predictor, words_K), dtype)
    embedding = small.net.embedding
    if not np.isfinite(small.vectors.table_VD).all():
        raise UserError(f"the vectors have numbers that are too large for {precision}: use float32")
    if isinstance(embedding, TunedEmbedding):
        embedding.offset_RD.data = embedding.offset_RD.data.to(dtype).float()
    return small


# --- the data -------------------------------------------------------------------------------------


def add_array(
    arrays: list[bytes], values: Tensor, precision: Precision = "float32"
) -> dict[str, Any]:
    """Appends a matrix to the arrays of the page, each of which begins at a multiple of four bytes.
    Returns its type, its size, and the index of its first byte.

    For float16, all low bytes precede all high bytes, which gzip compresses better.
    """
    rows, columns = values.shape
    start = sum(map(len, arrays))
    if precision == "float16":
        pairs = values.numpy().astype("<f2").view(np.uint8).reshape(-1, 2)
        content = pairs.T.tobytes()
    else:
        content = values.numpy().astype("<f4").tobytes()
    arrays.append(content + b"\0" * (-len(content) % 4))
    return {"type": precision, "rows": rows, "columns": columns, "start": start}


def rules_of(name: str) -> dict[str, Any]:
    """Returns the rules of a tokenizer for static/tokens.js."""
    pipeline = json.loads(pipeline_of(name).to_str())
    return {"pipeline": pipeline, "normalizes": RULES[name].normalizes}


def page_data(
    models: Sequence[PageModel], words: int | None, precision: Precision, reviews: int
) -> tuple[bytes, list[dict[str, Any]]]:
    """Returns the data of a page, which static/model.js reads, and facts about its models."""
    arrays: list[bytes] = []
    facts: list[dict[str, Any]] = []
    words_of: dict[str, Tensor] = {}  # fingerprint of vectors -> the words that are kept
    vectors: dict[str, dict[str, Any]] = {}  # fingerprint of vectors -> their words and numbers
    tests: list[list[dict[str, Any]]] = []  # the reviews of each test set
    for model in models:
        key = model.predictor.metadata["vectors"]
        if key not in words_of:
            same = [other for other in models if other.predictor.metadata["vectors"] == key]
            words_of[key] = chosen_words(same, words)
        small = with_page_words(model.predictor, words_of[key], precision)
        if key not in vectors:
            table = add_array(arrays, torch.tensor(small.vectors.table_VD), precision)
            vectors[key] = {"words": "\n".join(small.vectors.words), "table": table}
        shown, labeled = labeled_reviews(model.run, small, reviews)
        if shown not in tests:
            tests.append(shown)
        about = model_facts(model, small, arrays, precision) | labeled
        about["vectors"] = list(vectors).index(key)
        about["reviews"] = tests.index(shown)
        about["id"] = new_id(model.name, [other["id"] for other in facts])
        facts.append(about)
    content = {
        "models": facts,
        "vectors": list(vectors.values()),
        "tokenizers": {about["tokenizer"]: rules_of(about["tokenizer"]) for about in facts},
        "reviews": tests,
        "slots": SLOTS,
    }
    return framed(content, arrays), facts


def labeled_reviews(
    run: FinishedRun, small: ReviewPredictor, most: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns up to `most` test reviews of a run, at equal intervals, and how `small` labels them.

    accuracy_here: the accuracy of `small`, which has the words and vectors of the page, on all test
    reviews.
    """
    reviews = test_reviews(run, run.predictions("test")) if run.is_scored("test") else []
    results = small.label([review["text"] for review in reviews])
    right = [
        result.output == review["label"] for result, review in zip(results, reviews, strict=True)
    ]
    size = min(most, len(reviews))
    chosen = [number * len(reviews) // size for number in range(size)]
    facts = {
        "accuracy_here": sum(right) / len(right) if right else None,
        "browsable": bool(chosen),
        "predicted": {
            "labels": [results[index].output for index in chosen],
            "probabilities": [results[index].probability for index in chosen],
        },
    }
    return [reviews[index] for index in chosen], facts


def new_id(name: str, ids: Sequence[str]) -> str:
    """Returns a name that is not among the ids, and that a URL can contain."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(name for name in names if name not in ids)


def model_facts(
    model: PageModel, small: ReviewPredictor, arrays: list[bytes], precision: Precision
) -> dict[str, Any]:
    """Returns what the page shows of a model, and what it needs to compute it.

    Args:
        small: the model with the words and vectors of the page.
        arrays: the arrays of the page, to which those of the model are appended.
    """
    data = small.settings.data
    weights = {name: add_array(arrays, weight) for name, weight in weights_of(small.net).items()}
    offset_VD = offsets_VD(small.net)
    if offset_VD is not None:
        weights["offset"] = add_array(arrays, offset_VD, precision)
    return {
        **shown_result(model.run.metrics),
        "label": model.name,
        "folder": model.name,
        "kind": "classifier",
        "words": len(small.vectors.words),
        "of_words": len(model.predictor.vectors.words),
        "precision": precision,
        "labels": list(small.metadata["labels"]),
        "tokenizer": data.tokenizer,
        "max_tokens": data.max_tokens,
        "head": round((data.max_tokens or 0) * data.start_share),
        "network": described(small.net),
        "weights": weights,
    }


def shown_result(metrics: NestedDict) -> dict[str, Any]:
    """Returns the seed of a run and its accuracy on test, else on validation."""
    split = "validation" if metrics.get("test_accuracy") is None else "test"
    accuracy = metrics["test_accuracy" if split == "test" else "val_accuracy"]
    return {"seed": metrics["seed"], "accuracy": accuracy, "split": split}


def framed(facts: Mapping[str, object], arrays: Sequence[bytes]) -> bytes:
    """Returns the length of the JSON (uint32), the JSON, and the arrays, little-endian.

    Spaces after the JSON let the arrays begin at a multiple of four bytes.
    """
    header = json.dumps(facts, ensure_ascii=False).encode("utf-8", "replace")
    header += b" " * (-len(header) % 4)
    return b"".join([struct.pack("<I", len(header)), header, *arrays])


# --- the page -------------------------------------------------------------------------------------


def modules(name: str, seen: dict[str, str]) -> dict[str, str]:
    """Returns the source of a module of static/ and of those that it imports, which come first."""
    if name not in seen:
        source = (STATIC / name).read_text("utf-8")
        for match in IMPORT.finditer(source):
            modules(match[3], seen)
        seen[name] = source
    return seen


def imported(match: re.Match[str]) -> str:
    """Returns a statement of the script of `program` that replaces an import statement."""
    whole, names, module = match.groups()
    wanted = whole or "{ " + names.replace(" as ", ": ") + " }"
    return f'const {wanted} = modules["{module}"];\n'


def program() -> str:
    """Returns all modules of static/ as one script, each in a function of its own.

    The page runs it, and so does its worker, which is created from the text of the script.
    """
    parts = ['"use strict";\nconst modules = {};\n']
    for name, source in modules(ENTRY, {}).items():
        exports = ", ".join(EXPORT.findall(source))
        body = EXPORT.sub("", IMPORT.sub(imported, source))
        parts.append(f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n')
    return "".join(parts).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def write_page(
    models: Sequence[PageModel],
    out: Path | str,
    words: int | None = 20_000,
    precision: Precision = "float16",
    reviews: int = 48,
) -> dict[str, Any]:
    """Writes the page as one HTML file, and returns facts: its size in bytes, and its models.

    Args:
        out: the file; an earlier page is replaced.
        words: the number of the most frequent training words that are kept; None keeps all.
        precision: the precision of the vectors.
        reviews: the number of test reviews on the page.

    Raises UserError if `out` is another file.
    """
    out = with_home(out)
    refuse_other_file(out)
    data, facts = page_data(models, words, precision, reviews)
    script = program()
    style = (STATIC / "explore.css").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src '{hash_of(script)}' blob:; style-src '{hash_of(style)}';"
        " worker-src blob:; img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    policy_tag = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    encoded = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    page = (STATIC / "index.html").read_text("utf-8")
    replacements = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n{GENERATOR_TAG}\n{policy_tag}',
        '<link rel="stylesheet" href="explore.css">': f"<style>{style}</style>",
        '<script type="module" src="main.js"></script>\n': "",
        "</body>": f'<script id="data" type="text/plain">{encoded}</script>\n'
        f'<script id="program">{script}</script>\n</body>',
    }
    for old, new in replacements.items():
        page = page.replace(old, new)
    content = page.encode("utf-8", "replace")
    write_atomically(out, content)
    return {"size": len(content), "models": facts}


def refuse_other_file(out: Path) -> None:
    """Raises UserError if a file exists that is not a page of `write_page`."""
    if out.exists():
        with out.open("rb") as file:
            if GENERATOR_TAG.encode() not in file.read(1000):
                raise UserError(f"{out} is not a page of this command: choose another file")


def hash_of(source: str) -> str:
    """Returns the source expression of an inline script or style for a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def lines_of(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines that the command prints about a page."""
    for about in facts["models"]:
        line = "{label}, seed {seed}: {words:,} of {of_words:,} words, {precision}"
        if about["accuracy_here"] is not None and about["split"] == "test":
            here, of_run = (100 * about[name] for name in ("accuracy_here", "accuracy"))
            line += f", test accuracy {here:.2f} % (of the run: {of_run:.2f} %)"
        yield one_line(line.format_map(about))
