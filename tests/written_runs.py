"""Folders of finished runs, written without training."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from imdbattn.report.comparison import compare_sets
from imdbattn.settings.command_settings import with_defaults
from imdbattn.settings.keys import named_overrides

REVIEWS = 400
LABELS = np.arange(REVIEWS) % 2
TEXTS = [
    f"I do{'n’t' if n % 4 == 0 else ''} like it{' BUT' if n % 5 == 0 else ''}. {n}"
    for n in range(REVIEWS)
]


def write_run(
    folder: Path,
    model="mean",
    seed=1,
    accuracy=0.8,
    test=True,
    fingerprint="f1",
    metrics=None,
    right=None,
    overrides=None,
    **changed,
):
    """A run folder as training leaves it; `accuracy` of the reviews are right, by the same
    difficulty in all runs.

    right: which of the reviews are right instead. changed: settings, with __ for a dot. overrides:
    those that the run has recorded; by default, it records the changed settings.
    """
    config = OmegaConf.create(
        {"seed": seed, "model": {"name": model, "extends": EXTENDS.get(model)}}
    )
    given = {"data__path": "/somewhere", "data__tokenizer": "ptb", "optim__lr": 0.1}
    for key, value in (given | changed).items():
        OmegaConf.update(config, key.replace("__", "."), value)
    settings = OmegaConf.to_container(config)
    if overrides is None:
        words = [f"{key.replace('__', '.')}={value}" for key, value in changed.items()]
        overrides = named_overrides(words, settings)
    settings["overrides"] = overrides
    folder.mkdir(parents=True)
    OmegaConf.save(settings, folder / "config.yaml")
    difficulty = np.random.default_rng(0).permutation(REVIEWS) / REVIEWS
    noise = np.random.default_rng([seed, len(model)]).normal(0, 0.01, REVIEWS)
    probability = np.clip(0.5 + (accuracy - difficulty + noise), 0.01, 0.99)  # of the true label
    if right is not None:
        probability = np.where(right, 0.9, 0.1)
    predicted = np.where(probability > 0.5, LABELS, 1 - LABELS)
    share = float((predicted == LABELS).mean())
    both = np.where(LABELS[:, None] == np.arange(2), probability[:, None], 1 - probability[:, None])
    for prefix in ("", "validation_") if test else ("validation_",):
        columns = {"row": np.arange(REVIEWS) + 7, "label": LABELS, "predicted": predicted}
        columns |= {"probability": both.max(1), "probabilities": list(both)}
        columns |= {"length": np.arange(REVIEWS) + 1}
        write_scores(folder, prefix, columns, TEXTS)
    facts = {"model": model, "seed": seed, "test_set": "small", "items": "reviews"}
    facts |= {"labels": ["neg", "pos"]}
    facts |= {"val_accuracy": share, "test_fingerprint": fingerprint, "val_fingerprint": "v1"}
    facts |= {"test_accuracy": share} if test else {}
    (folder / "metrics.json").write_text(json.dumps(facts | (metrics or {})))
    return folder


def write_scores(folder: Path, prefix: str, columns: dict, texts: list[str]) -> None:
    pq.write_table(pa.table(columns), folder / f"{prefix}predictions.parquet")
    reviews = pa.table({"row": columns["row"], "text": texts})
    pq.write_table(reviews, folder / f"{prefix}reviews.parquet")


STRINGS = [" ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 1 + n % 20]) for n in range(REVIEWS)]


def write_decoded(folder: Path, model: str, seed: int, reach: float, lengths: tuple[int, int]):
    """A run folder of an encoder-decoder, right at strings of up to about `reach` letters."""
    folder.mkdir(parents=True)
    extends = {"seq2seq_attention": "seq2seq"}.get(model)
    data = {"source": "reverse", "lengths": list(lengths), "test_lengths": [1, 20], "test": REVIEWS}
    overrides = named_overrides([f"data.lengths={list(lengths)}"], {})
    config = {"seed": seed, "model": {"name": model, "extends": extends}, "data": data}
    config["overrides"] = overrides
    OmegaConf.save(config, folder / "config.yaml")
    length_N = np.array([len(text.split()) for text in STRINGS])
    probability_N = 1 / (1 + np.exp(length_N - reach))  # of the first reference
    right_N = probability_N > np.random.default_rng(seed).random(REVIEWS)
    answers = [text[::-1] for text in STRINGS]
    predicted = [answer if ok else "A" for answer, ok in zip(answers, right_N, strict=True)]
    columns = {"row": np.arange(REVIEWS) + 3, "label": answers, "predicted": predicted}
    columns |= {"references": [[text] for text in answers], "right": right_N, "length": length_N}
    columns |= {"probability": np.maximum(probability_N, 0.4), "label_probability": probability_N}
    for prefix in ("", "validation_"):
        write_scores(folder, prefix, columns, STRINGS)
    facts = {"model": model, "seed": seed, "test_set": "letters", "items": "strings"}
    facts |= {"test_fingerprint": "s1", "val_fingerprint": f"v{lengths[1]}", "val_accuracy": 0.9}
    facts["test_accuracy"] = float(right_N.mean())
    (folder / "metrics.json").write_text(json.dumps(facts))


def quick_sets(*folders, **options) -> list[dict]:
    return compare_sets(with_defaults("compare", runs=[*folders], **options))


def quick(*folders, **options) -> dict:
    (found,) = quick_sets(*folders, **options)
    return found


EXTENDS = {"base": "mean", "base_pe": "base", "residual": "base", "residual_pe": "residual"}
