"""The reviews of a test set, selected by the predictions of the runs.

Shape suffix: N reviews.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.report.finished_runs import FinishedRun, SplitPredictions
from imdbattn.tools.explore.runs import Message, Runs

CONFIDENT = 0.9  # least probability of the predicted label
LONG = 400  # least number of words


class Next(Message):
    """Asks for the next review (step -1: the previous) of the test set of `run` after the row
    `after`; the first after the last.

    It fulfills all conditions that are set. disagree: the predictions of `runs` are not the same.
    contains: a word.
    """

    run: str
    runs: list[str]
    after: int | None = None
    step: Literal[1, -1] = 1
    wrong: bool = False
    confident: bool = False
    disagree: bool = False
    long: bool = False
    contains: Annotated[str, Field(max_length=200)] = ""

    def answer(self, runs: Runs) -> dict[str, Any]:
        """Returns the review, its place among the `matching` ones, from 1, and the number of all.

        Raises UserError if none fulfills the conditions.
        """
        run = runs.run(self.run)
        others = list(map(runs.run, self.runs))
        own = run.predictions("test")
        texts = run.texts("test", own.rows_N)
        chosen_N = self.chosen(own, texts)
        if self.disagree:
            fingerprint = run.metrics["test_fingerprint"]
            same = [run for run in others if run.metrics.get("test_fingerprint") == fingerprint]
            chosen_N &= disagreeing(same, own)
        places = np.flatnonzero(chosen_N)
        if not len(places):
            raise UserError(
                f"none of the {len(texts):,} test reviews meets these conditions: remove one"
            )
        at = self.following(places, own.rows_N)
        place = int(places[at])
        return {
            "row": int(own.rows_N[place]),
            "text": texts[place],
            "label": run.labels[int(own.labels_N[place])],
            "place": at + 1,
            "matching": len(places),
            "of": len(texts),
        }

    def chosen(self, own: SplitPredictions, texts: Sequence[str]) -> np.ndarray:
        """Returns which reviews fulfill the conditions on this run and the text, (N,) bool."""
        chosen_N = np.ones(len(texts), dtype=bool)
        if self.wrong:
            chosen_N &= ~own.right_N
        if self.confident:
            chosen_N &= own.confidence_N >= CONFIDENT
        if self.long:
            chosen_N &= np.array([len(text.split()) >= LONG for text in texts])
        if word := self.contains.strip():
            pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
            chosen_N &= np.array([pattern.search(text) is not None for text in texts])
        return chosen_N

    def following(self, places: np.ndarray, rows_N: np.ndarray) -> int:
        """Returns which of the places comes next after the row `after`."""
        known = np.flatnonzero(rows_N == (-1 if self.after is None else self.after))
        if self.step == 1:
            start = known[0] if len(known) else -1
            at = np.searchsorted(places, start + 1)
        else:
            start = known[0] if len(known) else 0
            at = np.searchsorted(places, start) - 1
        return int(at % len(places))


def disagreeing(others: Sequence[FinishedRun], own: SplitPredictions) -> np.ndarray:
    """Returns where another run predicts another label, (N,) bool."""
    predicted = [other.predictions("test").predicted_N for other in others]
    return np.any([predicted_N != own.predicted_N for predicted_N in predicted], axis=0)
