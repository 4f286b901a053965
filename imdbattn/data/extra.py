"""Additional training texts (data.extra): with labels, probabilities of classes, or neither.

Shape suffixes: N training reviews, the last U of them additional, C classes.
"""

import logging
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus, read_texts, tokenizer_of
from imdbattn.data.labels import counted, number_labels
from imdbattn.data.ragged import Ragged
from imdbattn.data.splits import fingerprint, with_single_spaces
from imdbattn.data.user_files import tables
from imdbattn.data.user_files.review_files import read_reviews
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import with_home
from imdbattn.settings.schema import ReviewDataSettings

log = logging.getLogger(__name__)

PROBABILITY = "probability_"  # start of the names of columns that imdbattn.predict writes
TOLERANCE = 1e-3  # for the sum of a text's probabilities


def with_extra(
    corpus: ReviewCorpus, settings: ReviewDataSettings, labeled: bool = True
) -> ReviewCorpus:
    """Returns the corpus with `targets_NC`, and with the texts of data.extra in training except
    texts that are in validation or test.

    labeled: whether the texts have labels or probabilities; otherwise their targets are 0, and
    data.extra may also be a folder with a text in each .txt file, or a file with one text per line.
    Raises UserError for a table that cannot be read, or whose classes differ from the corpus's.
    """
    classes = len(corpus.label_names)
    if labeled:
        with wrapping_errors(f"data.extra={settings.extra}"):
            texts, targets_UC = read_labeled(settings, corpus.label_names)
    else:
        lines = tables.open_lines(with_home(str(settings.extra)), settings.text_column).texts
        texts = [text for text in lines if text.strip()]
        targets_UC = torch.zeros(len(texts), classes)
    # of the whole table: each fold of a cross-validation omits other texts
    added = fingerprint(
        f"{target}\0{text}\0" for target, text in zip(targets_UC.tolist(), texts, strict=True)
    )
    held_out = {
        with_single_spaces(text)
        for split in ("validation", "test")
        for text in read_texts(corpus.texts_file(split))
    }
    kept = [index for index, text in enumerate(texts) if with_single_spaces(text) not in held_out]
    omitted = f"omitted {len(texts) - len(kept)} in validation or test"
    log.info("data.extra=%s: %d training texts; %s", settings.extra, len(kept), omitted)
    targets_UC, texts = targets_UC[kept], [texts[index] for index in kept]
    ids, offsets, _ = tokenizer_of(settings.tokenizer, corpus.vectors.words).encode(texts)
    train = corpus.splits["train"]
    longer = Ragged(
        torch.cat([train.ids, torch.from_numpy(ids)]),
        torch.cat([train.offsets, torch.from_numpy(offsets)[1:] + train.offsets[-1]]),
        torch.cat([train.labels, targets_UC.argmax(1)]),
        np.concatenate([train.rows, np.array(kept, int) + 1 + train.rows.max(initial=-1)]),
    )
    return replace(
        corpus,
        splits=corpus.splits | {"train": longer},
        added=len(texts),
        targets_NC=torch.cat([F.one_hot(train.labels, classes), targets_UC]).float(),
        fingerprints=corpus.fingerprints | {"extra": added},
        source_key=f"{corpus.source_key}-{added}",
        facts=corpus.facts | {"extra_texts": len(texts), "extra_fingerprint": added},
    )


def read_labeled(settings: ReviewDataSettings, label_names: list[str]) -> tuple[list[str], Tensor]:
    """Returns the texts of the table data.extra, and the probability of each class, (U, C) float64,
    in the order of `label_names`.

    A table with columns probability_<class>, as imdbattn.predict writes, contains the texts in
    `text`; any other table contains data.text_column and data.label_column. Raises UserError for
    other classes, and for anything but probabilities.
    """
    path = with_home(str(settings.extra))
    columns, _ = tables.open_table(path)
    if not any(column.startswith(PROBABILITY) for column in columns):
        rows = read_reviews(path, settings)
        numbers = number_labels([label for _, label in rows], label_names, path)
        numbers_U = torch.from_numpy(numbers)
        return [text for text, _ in rows], F.one_hot(numbers_U, len(label_names)).double()
    names = ["text", *(f"{PROBABILITY}{label}" for label in label_names)]
    texts, *values = tables.read_columns(path, {name: name for name in names})
    targets_UC = torch.from_numpy(np.array(values, dtype=float).T)
    has_sum_U = (targets_UC.sum(1) - 1).abs() <= TOLERANCE
    right_U = ((targets_UC >= 0) & (targets_UC <= 1)).all(1) & has_sum_U
    if not right_U.all():
        row = counted(right_U.tolist().index(False))
        raise UserError(
            f"{path}: {row} has probabilities outside 0 to 1, or whose sum is not 1: correct it, or"
            " use runs with the same classes"
        )
    return texts, targets_UC
