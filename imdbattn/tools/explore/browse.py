"""The reviews of a test set, selected by the predictions of the runs. N reviews."""

import re
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.tools.explore.runs import Message, Runs

CONFIDENT = 0.9  # least probability of the predicted label
LONG = 400  # least number of words


class Next(Message):
    """The next review (step -1: the previous) of the test set of `run` after the row `after`; the
    first after the last.

    It fulfills all conditions that are set. disagree: the predictions of `runs` are not the same;
    contains: a word. `answer` raises UserError if there is none.
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
        run, others = runs.run(self.run), [runs.run(name) for name in self.runs]
        own = run.predictions("test")
        texts = run.texts("test", own.rows_N)
        chosen_N = np.ones(len(texts), dtype=bool)
        if self.wrong:
            chosen_N &= ~own.right_N
        if self.confident:
            chosen_N &= own.confidence_N >= CONFIDENT
        if self.long:
            chosen_N &= np.array([len(text.split()) >= LONG for text in texts])
        if self.disagree:
            same = [
                one
                for one in others
                if one.metrics.get("test_fingerprint") == run.metrics["test_fingerprint"]
            ]
            chosen_N &= np.any(
                [one.predictions("test").predicted_N != own.predicted_N for one in same], axis=0
            )
        if word := self.contains.strip():
            pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
            chosen_N &= np.array([pattern.search(text) is not None for text in texts])
        places = np.flatnonzero(chosen_N)
        if not len(places):
            raise UserError(
                f"none of the {len(texts):,} test reviews meets these conditions: remove one"
            )
        known = np.flatnonzero(own.rows_N == (-1 if self.after is None else self.after))
        start = known[0] if len(known) else -1 if self.step == 1 else 0
        at = (
            np.searchsorted(places, start + 1)
            if self.step == 1
            else np.searchsorted(places, start) - 1
        )
        place = int(places[at % len(places)])
        return {
            "row": int(own.rows_N[place]),
            "text": texts[place],
            "label": run.labels[int(own.labels_N[place])],
            "place": int(at % len(places)) + 1,
            "matching": len(places),
            "of": len(texts),
        }
