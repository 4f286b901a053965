"""Which word vectors an export keeps, and in which precision.

Shape suffixes: V rows of the vectors of the run, K rows that are kept, R rows with an
offset, P phrases.
"""

import logging
from collections.abc import Sequence
from operator import ne
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imdbattn.data.corpus import read_texts
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.data.word_vectors import WordVectors
from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.io.files import SavedNet, read_json
from imdbattn.settings.command_settings import ExportSettings
from imdbattn.settings.keys import FINGERPRINT_KEYS, NestedDict, hexdigest
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tasks.tuned_words import tuned_ids

log = logging.getLogger(__name__)

MAY_CHANGE = 0.01  # share of the labels; above it, a warning is logged
VECTORS = "embedding.vectors_VD"
# Weights that depend on the ids of words
SLOTS, OFFSETS = "embedding.slot_V", "embedding.offset_RD"
PHRASES = "context.phrases.codes_P"


def choose_vectors(
    predictor: ReviewPredictor, run: Run, metrics: NestedDict, options: ExportSettings
) -> tuple[ReviewPredictor, NestedDict]:
    """Returns the predictor with the vectors to export, and facts about them. A predictor that was
    read from an export keeps its vectors.

    Raises UserError if all words are wanted, and this export does not have them.
    """
    if run.kind == "export":
        facts = read_json(run.settings_file)["export"]
        if options.vectors == "all" and facts["vectors"] == "training":
            raise UserError(
                f"{run.folder} has only the words of its training reviews: vectors=all needs"
                " the run"
            )
        return predictor, facts
    words_K = training_words(predictor, metrics) if options.vectors == "training" else None
    chosen = predictor if words_K is None else with_words(predictor, words_K)
    split = "test" if (run.folder / SPLIT_FILES["test"][1]).exists() else "validation"
    texts = read_texts(run.folder / SPLIT_FILES[split][1])
    before = labels_of(predictor, texts)
    labels = before if words_K is None else labels_of(chosen, texts)
    changed = sum(map(ne, labels, before))
    line = f"{changed} of {len(texts)} {split} reviews change their label"
    if changed > MAY_CHANGE * len(texts):
        log.warning("%s, because words that training lacks are omitted: use vectors=all", line)
    else:
        log.info(line)
    precision = "float32"
    if options.precision == "auto":
        half = rounded(chosen, torch.float16)
        if np.isfinite(half.vectors.table_VD).all() and labels_of(half, texts) == labels:
            chosen, precision = half, "float16"
    facts = {
        "vectors": "all" if words_K is None else "training",
        "words": len(chosen.vectors.words),
        "of_words": len(predictor.vectors.words),
        "precision": precision,
        "split": split,
        "reviews": len(texts),
        "changed_labels": changed,
    }
    return chosen, facts


def training_words(predictor: ReviewPredictor, metrics: NestedDict) -> Tensor | None:
    """Returns the ids, ascending, of the words of the training reviews and of all words whose
    vectors were trained, (K,); None, with a warning, if they are not known.
    """
    tuned_K = tuned_ids(predictor.net.state_dict(), "embedding")
    if tuned_K is not None and not predictor.settings.init:
        return tuned_K  # with `init`, they are the words of that run's training reviews
    counts_V = training_counts(predictor, metrics)
    if counts_V is None:
        return None
    if tuned_K is not None:
        counts_V[tuned_K] += 1
    return counts_V[FIRST_WORD:].nonzero()[:, 0] + FIRST_WORD


def training_counts(predictor: ReviewPredictor, metrics: NestedDict) -> Tensor | None:
    """Returns how often each id occurs in the training reviews, (V,); None, with a warning, if
    they are not available or have changed since the run.
    """
    from imdbattn.tasks.reviews.module import ReviewData  # this imports Lightning

    try:
        corpus = ReviewData.read(predictor.settings)
        facts = {key: corpus.fingerprints[split] for split, key in FINGERPRINT_KEYS.items()}
        facts["source_key"] = corpus.source_key
        if corpus.vectors.fingerprint != predictor.vectors.fingerprint:
            raise UserError(
                "the reviews have other ids: the vectors are those of an export, or have changed"
            )
        if not facts.items() <= metrics.items():
            raise UserError("the reviews have changed since the run")
    except (UserError, OSError) as error:
        log.warning("Words are not chosen by training: %s", error)
        return None
    return torch.bincount(corpus.splits["train"].ids, minlength=len(predictor.vectors.table_VD))


def labels_of(predictor: ReviewPredictor, texts: Sequence[str]) -> list[str]:
    """Returns the label of each text."""
    return [result.output for result in predictor.label(texts)]


def with_words(predictor: ReviewPredictor, words_K: Tensor) -> ReviewPredictor:
    """Returns the same weights with the vectors of these words only. words_K: their ids,
    ascending.
    """
    weights = predictor.net.state_dict()
    table_VD = predictor.net.embedding.vectors_VD
    rows_K = torch.cat([torch.arange(FIRST_WORD), words_K])
    words = [predictor.vectors.words[row - FIRST_WORD] for row in words_K.tolist()]
    if SLOTS in weights:
        slots_R, new_slot_K = weights[SLOTS][rows_K].unique(return_inverse=True)
        weights[OFFSETS] = weights[OFFSETS][slots_R]
        weights[SLOTS] = new_slot_K.to(torch.int32)
    if PHRASES in weights:
        weights[PHRASES] = renumbered(weights[PHRASES], rows_K, len(table_VD))
    # The ids in the cache are not the ids of these words.
    digest = hexdigest({"vectors": predictor.metadata["vectors"], "words": words})
    trained = SavedNet(weights, {**predictor.metadata, "vectors": digest})
    return with_table(predictor.settings, trained, words, table_VD[rows_K])


def rounded(predictor: ReviewPredictor, dtype: torch.dtype) -> ReviewPredictor:
    """Returns the same weights with the vectors rounded to a dtype."""
    trained = SavedNet(predictor.net.state_dict(), predictor.metadata)
    table_VD = predictor.net.embedding.vectors_VD.to(dtype).float()
    return with_table(predictor.settings, trained, predictor.vectors.words, table_VD)


def renumbered(codes_P: Tensor, rows_K: Tensor, id_count: int) -> Tensor:
    """Returns the codes of phrases (nn/beyond/context) with indices in `rows_K` as ids.

    id_count: the previous number of ids.
    """
    new_id_V = torch.zeros(id_count, dtype=torch.int64)
    new_id_V[rows_K] = torch.arange(len(rows_K))
    new_P = torch.zeros_like(codes_P)
    factor = 1
    while codes_P.any():
        new_P += new_id_V[codes_P % id_count] * factor
        codes_P = codes_P // id_count
        factor *= len(rows_K)
    return new_P


def with_table(
    settings: Any, trained: SavedNet, words: list[str], table_VD: Tensor
) -> ReviewPredictor:
    """Returns a trained model with a table of vectors that is in no cache."""
    mean_D = trained.weights["embedding.shift_D"].numpy()
    std_D = (1 / trained.weights["embedding.scale_D"]).numpy()
    fingerprint = trained.metadata["vectors"]
    vectors = WordVectors(words, table_VD.numpy(), mean_D, std_D, fingerprint)
    return ReviewPredictor.load(settings, trained, vectors)
