"""Pairs of a review and an edited one with another label: Kaushik et al., "Learning the Difference
that Makes a Difference with Counterfactually-Augmented Data", ICLR 2020. The edits are the reasons
that people gave.

Shape suffixes: B pairs of a batch, T positions.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from imdbattn.data.ragged import Batch, kept_indices
from imdbattn.data.user_files.tables import is_table, read_columns
from imdbattn.errors import UserError
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tools.faithfulness.attributions import predicted_labels
from imdbattn.tools.faithfulness.erasure import average_precision, ranks

PAIR_COLUMNS = {"label": "Sentiment", "text": "Text", "pair": "batch_id"}  # in the published tables


class EditedPair(NamedTuple):
    """A review and its edited form. Labels are indices."""

    original: str
    label: int
    edited: str
    edited_label: int


class ReadPairs:
    """Pairs as a model reads them. Items of a batch are originals, by the indices of the pairs."""

    def __init__(self, pairs: Sequence[EditedPair], predictor: ReviewPredictor):
        self.pairs = pairs
        self.predictor = predictor
        self.originals = [pair.original for pair in pairs]
        self.maker = predictor.batch_maker(self.originals)

    @cached_property
    def edits(self) -> list[Tensor]:
        """Whether each word that is read of the original was edited (T,), for each pair."""
        words_of = self.predictor.tokenizer.words
        edits = []
        for pair in self.pairs:
            before = [word.text for word in words_of(pair.original)]
            after = [word.text for word in words_of(pair.edited)]
            changed = torch.tensor(edited_words(before, after), dtype=torch.bool)
            edits.append(changed[kept_indices(len(changed), self.predictor.batch_options)])
        return edits

    def labels(self, batch: Batch) -> dict[str, Tensor]:
        """Returns whether the labels of both texts are right, and the share of edited words."""
        items = batch.items_B.tolist()
        pairs = [self.pairs[item] for item in items]
        label_B = torch.tensor([pair.label for pair in pairs])
        edited_label_B = torch.tensor([pair.edited_label for pair in pairs])
        first_B = predicted_labels(self.predictor.net, batch) == label_B
        probability_BC, _ = self.predictor.classify([pair.edited for pair in pairs])
        second_B = probability_BC.argmax(1) == edited_label_B
        shares = [self.edits[item].double().mean() for item in items]
        return {
            "original": first_B,
            "edited": second_B,
            "both": first_B & second_B,
            "share": torch.stack(shares),
        }

    def precision(self, attributions_BT: Tensor, batch: Batch) -> Tensor:
        """Returns (B,): how well the attributions find the edited words of each pair.

        It is NaN for a pair whose edits only add words: no word of its original was edited.
        """
        edited_BT = torch.zeros(batch.tokens_BT.shape, dtype=torch.bool)
        for edited_T, item in zip(edited_BT, batch.items_B.tolist(), strict=True):
            edits = self.edits[item]
            edited_T[: len(edits)] = edits
        precision_B = average_precision(ranks(attributions_BT, batch), edited_BT)
        return precision_B.masked_fill(~edited_BT.any(1), torch.nan)


def read_edited_pairs(
    path: Path, labels: Sequence[str], held_out: Collection[str]
) -> list[EditedPair]:
    """Reads the pairs whose original was held out from training: is one of the texts `held_out`.

    path: a table, or a folder of tables, with the columns of PAIR_COLUMNS; two rows with the same
    `batch_id` are a pair.
    labels: names of the classes, such as neg for Negative. Raises UserError if there is no such
    pair, because the model may have been trained on the others, or for a label that does not begin
    with one of the names.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if is_table(file))
    by_number = defaultdict(list)
    for file in files:
        for label, text, number in zip(*read_columns(file, PAIR_COLUMNS), strict=True):
            by_number[file, number].append((text or "", class_of(label or "", labels)))
    known = set(map(letters, held_out))
    pairs = []
    for both in by_number.values():
        ordered = sorted(both, key=lambda row: letters(row[0]) not in known)
        if [letters(text) in known for text, _ in ordered] == [True, False]:
            pairs.append(EditedPair(*ordered[0], *ordered[1]))
    if not pairs:
        raise UserError(
            f"pairs_of={path}: none of {len(by_number):,} originals is in this split, so the model"
            " may have been trained on them: use runs that held these reviews out, as with"
            " data.source=packaged, or omit pairs_of"
        )
    return pairs


def class_of(label: str, names: Sequence[str]) -> int:
    """Returns the index of the class whose name begins the label. Raises UserError without one."""
    word = label.lower()
    classes = [number for number, name in enumerate(names) if word.startswith(name.lower())]
    if len(classes) != 1:
        raise UserError(
            f"pairs_of: the label {label!r} does not begin with exactly one of {', '.join(names)}"
        )
    return classes[0]


def letters(text: str) -> str:
    """Returns the letters and digits of a text in lower case, without tags, for comparison."""
    return re.sub(r"<[^>]*>|[\W_]", "", text.lower())


def edited_words(original: Sequence[str], edited: Sequence[str]) -> list[bool]:
    """Returns whether each word of the original was replaced or deleted."""
    changed = [True] * len(original)
    for block in SequenceMatcher(None, original, edited, autojunk=False).get_matching_blocks():
        changed[block.a : block.a + block.size] = [False] * block.size
    return changed
