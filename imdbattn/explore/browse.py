"""The reviews of a test set, selected by the predictions of the runs. N reviews."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from imdbattn.comparison.runs import Run
from imdbattn.errors import UserError

CONFIDENT = 0.9  # least probability of the predicted label
LONG = 400  # least number of words


class Filters(BaseModel):
    """A review must fulfill all that are set. disagree: the runs that are shown. contains: a word."""

    model_config = ConfigDict(extra="forbid", strict=True)

    wrong: bool = False
    confident: bool = False
    disagree: bool = False
    long: bool = False
    contains: Annotated[str, Field(max_length=200)] = ""


@lru_cache(4)
def texts_of(run: Run) -> list[str]:
    """The test reviews of a run; those of the runs used last stay in memory."""
    return run.texts("test") or []


def next_review(
    run: Run, others: Sequence[Run], filters: Filters, after: int | None, step: Literal[1, -1]
) -> dict[str, Any]:
    """The next review of the test set of `run` that fulfills the filters, after the row `after`; -1: the previous.

    After the last one comes the first. Raises UserError if there is none.
    """
    own, texts = run.predictions("test"), texts_of(run)
    chosen_N = np.ones(len(texts), dtype=bool)
    if filters.wrong:
        chosen_N &= ~own.right_N
    if filters.confident:
        chosen_N &= own.confidence_N >= CONFIDENT
    if filters.long:
        chosen_N &= np.array([len(text.split()) >= LONG for text in texts])
    if filters.disagree:
        same = [other for other in others if other.metrics.get("test_fingerprint") == run.metrics["test_fingerprint"]]
        chosen_N &= np.any([other.predictions("test").predicted_N != own.predicted_N for other in same], axis=0)
    if word := filters.contains.strip():
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
        chosen_N &= np.array([pattern.search(text) is not None for text in texts])
    places = np.flatnonzero(chosen_N)
    if not len(places):
        raise UserError(f"none of the {len(texts):,} test reviews fulfills these conditions: choose fewer")
    known = np.flatnonzero(own.rows_N == (-1 if after is None else after))
    start = known[0] if len(known) else -1 if step == 1 else 0
    at = int(np.searchsorted(places, start + 1) if step == 1 else np.searchsorted(places, start) - 1) % len(places)
    place = int(places[at])
    return {
        "row": int(own.rows_N[place]),
        "text": texts[place],
        "label": run.labels[int(own.labels_N[place])],
        "place": at + 1,
        "matching": len(places),
        "of": len(texts),
    }
