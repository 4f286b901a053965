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
    """Asks for the next or, with step -1, the previous review of the test set of `run` that meets
    all conditions, starting from the row `after`. The first one follows the last.

    disagree: Whether the predictions of `runs` must differ. contains: A word in the review.
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
        """Returns the review, its number among the matching ones, and how many of all match.

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
        matching = np.flatnonzero(chosen_N)
        if not len(matching):
            raise UserError(
                f"none of the {len(texts):,} test reviews meets these conditions: remove one"
            )
        number = self.following(matching, own.rows_N)
        review = int(matching[number])
        return {
            "row": int(own.rows_N[review]),
            "text": texts[review],
            "label": run.labels[int(own.labels_N[review])],
            "place": number + 1,
            "matching": len(matching),
            "of": len(texts),
        }

    def chosen(self, own: SplitPredictions, texts: Sequence[str]) -> np.ndarray:
        """Returns which reviews meet the conditions on this run and on the text, (N,) bool."""
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

    def following(self, matching: np.ndarray, rows_N: np.ndarray) -> int:
        """Returns which of the matching reviews comes next after the row `after`."""
        known = np.flatnonzero(rows_N == (-1 if self.after is None else self.after))
        if self.step == 1:
            current = known[0] if len(known) else -1
            number = np.searchsorted(matching, current + 1)
        else:
            current = known[0] if len(known) else 0
            number = np.searchsorted(matching, current) - 1
        return int(number % len(matching))


def disagreeing(others: Sequence[FinishedRun], own: SplitPredictions) -> np.ndarray:
    """Returns where another run predicts another label, (N,) bool."""
    predicted = [other.predictions("test").predicted_N for other in others]
    return np.any([predicted_N != own.predicted_N for predicted_N in predicted], axis=0)
