"""The outcome of a check, for people, programs and graders."""

import csv
import io
import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from imdbattn.tools.check.findings import Mistake

LINE_WIDTH = 100

# Checks that may fail in a part that computes the right function of reviews with words.
SAME_FUNCTION = ("input-unchanged", "registered", "finite", "gradients")


@dataclass
class Result:
    """The result of a check.

    held: None if it could not be checked. finding: "blocked" if a rule that must hold first does
    not, "not-checked" if the checker itself raised an exception, "not-compared" if the results
    could not be compared with those of the reference. sentence: what holds, or what is wrong.
    line: where a part with a finding is defined.
    """

    part: str
    check: str
    held: bool | None
    finding: str | None
    sentence: str
    example: str = ""
    fix: str = ""
    line: str = ""


def result_of(part: str, check: str, mistake: Mistake, line: str = "") -> Result:
    """Returns the result of a check that does not hold."""
    texts = mistake.finding, mistake.sentence, mistake.example, mistake.fix
    return Result(part, check, False, *texts, line)


@dataclass
class Outcome:
    """What was found in a file."""

    file: str = ""
    # parts of the file -> names of their checks
    parts: dict[str, list[str]] = field(default_factory=dict)
    # parts of the file -> further names: of the kind of part, of the sheet
    labels: dict[str, list[str]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    sheet: str = ""  # its title
    expected: list[str] = field(default_factory=list)  # the parts of the sheet
    points: dict[str, float] = field(default_factory=dict)  # the most that a part can have
    doing: list[str] = field(default_factory=list)  # part and check
    printed: str = ""  # the end of what the file printed
    done: bool = False
    error: str = ""  # why the file could not be checked

    @classmethod
    def from_json(cls, text: bytes) -> "Outcome":
        """Returns the outcome whose `asdict` was written as JSON."""
        values = json.loads(text)
        results = [Result(**values) for values in values.pop("results")]
        return cls(results=results, **values)

    def require(self, parts: Iterable[str]) -> None:
        """Adds a finding for each of these parts that an imported file does not have."""
        for part in parts if self.parts else ():
            if not self.called(part):
                sentence = f"{part} is not in the file."
                self.results.append(Result(part, "present", False, "missing", sentence))

    def called(self, name: str) -> list[str]:
        """Returns the parts of the file with this name, or of the kind with this name."""
        if name in self.parts:
            return [name]
        return [part for part in self.parts if name in self.labels[part]]

    def results_of(self, name: str) -> list[Result]:
        """Returns the results of the parts that are called so, also that one is missing."""
        parts = {name, *self.called(name)}
        return [result for result in self.results if result.part in parts]

    def of(self, held: bool | None) -> list[Result]:
        """Returns the checks that hold (True), do not hold (False), or were not made (None)."""
        return [result for result in self.results if result.held is held]

    @property
    def grade(self) -> dict[str, int]:
        """How many of the checks that could be made hold."""
        held = len(self.of(True))
        return {"held": held, "of": held + len(self.of(False))}

    @property
    def unmade(self) -> int:
        reasons = ("blocked", "not-checked", "not-compared")
        return sum(result.finding in reasons for result in self.results)

    def earned(self) -> dict[str, float | None]:
        """Returns the points of each part: in proportion to the checks that hold, and at most half
        if it computes another function; None if no check could be made.
        """
        earned: dict[str, float | None] = {}
        for name, most in (self.points or dict.fromkeys(self.parts, 1.0)).items():
            made = [r for r in self.results_of(name) if r.held is not None]
            share = sum(r.held is True for r in made) / max(1, len(made))
            if any(not r.held and r.check not in SAME_FUNCTION for r in made):
                share = min(share, 0.5)
            earned[name] = round(most * share, 4) if made else None
        return earned

    @property
    def total(self) -> float:
        return round(sum(filter(None, self.earned().values())), 4)

    @property
    def status(self) -> int:
        """1 if a check fails; else 2 if none was made or the checker failed; else 0."""
        failed = any(result.finding == "not-checked" for result in self.results)
        return 1 if self.of(False) else 2 if failed or not self.of(True) else 0

    @property
    def passed(self) -> bool:
        """Whether checks were made, all of them hold, and the checker itself did not fail."""
        return self.status == 0

    @property
    def summary(self) -> str:
        text = f"{self.grade['held']} of {self.grade['of']} checks hold."
        text += f" {self.unmade} could not be made." * bool(self.unmade)
        if self.points:
            text += f" {self.total:g} of {sum(self.points.values()):g} points."
            missing = ", ".join(part for part, value in self.earned().items() if value is None)
            text += f" Not graded, because no check could be made: {missing}." * bool(missing)
        return text

    def __repr__(self) -> str:
        return as_text(self)


def wrapped(label: str, text: str) -> str:
    indent = " " * (len(label) - len(label.lstrip()) or 7)
    text = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.fill(
        text, LINE_WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    )


def explained(r: Result) -> str:
    """Returns a finding with its example and what to change."""
    line = f", {r.line}" if r.line else ""
    first = f"WRONG  {r.part}{line}: ", f"{r.finding}. {r.sentence}"
    lines = [first, ("       Example: ", r.example), ("       Change:  ", r.fix)]
    return "\n".join(wrapped(label, text) for label, text in lines if text)


def as_text(outcome: Outcome) -> str:
    """Returns the checks that hold, the findings, the checks that were not made, and the grade."""
    right, wrong, unmade = map(outcome.of, (True, False, None))
    blocks = [
        "\n".join(wrapped(f"ok     {r.part}: ", r.sentence) for r in right),
        *map(explained, wrong),
    ]
    unwritten = {r.part for r in wrong if r.finding == "not-written-yet"}
    blocked = [r for r in unmade if r.finding == "blocked" and r.part not in unwritten]
    notes = [f"{r.part}: {r.sentence}" for r in unmade if r.finding != "blocked"]
    if blocked:
        texts = []
        for part, group in groupby(blocked, lambda r: r.part):
            checks = ", ".join(r.check for r in group)
            texts.append(f"{part}: {checks}")
        notes.append(f"To be checked when the above is corrected: {'; '.join(texts)}.")
    absent = [part for part in outcome.expected if part not in outcome.parts]
    notes += [f"Checked with the sheet: {outcome.sheet}."] if outcome.sheet else []
    if absent and outcome.parts and outcome.file:
        notes.append(f"Not in the file: {', '.join(absent)}.")
    notes += [f"The file printed: {outcome.printed[-300:]}"] if outcome.printed else []
    end = [*(wrapped("note   ", note) for note in dict.fromkeys(notes)), outcome.summary]
    return "\n\n".join(filter(None, [*blocks, "\n".join(end)]))


def as_dict(outcome: Outcome) -> dict[str, Any]:
    values: dict[str, Any] = {"version": 2, "file": outcome.file}
    if outcome.error:
        return values | {"error": outcome.error}
    return values | {
        "grade": outcome.grade,
        "points": outcome.earned() if outcome.points else None,
        "parts": list(outcome.parts),
        "not_found": [part for part in outcome.expected if part not in outcome.parts],
        "checks": [asdict(result) for result in outcome.results],
        "printed": outcome.printed,
    }


def as_json(outcomes: list[Outcome]) -> str:
    dicts = [*map(as_dict, outcomes)]
    return json.dumps(dicts[0] if len(dicts) == 1 else dicts, indent=1)


def as_gradescope(outcomes: list[Outcome]) -> str:
    """Returns a results.json of Gradescope: a test for each part, without points if not checked."""
    (outcome,), tests = outcomes, []
    for part, value in outcome.earned().items():
        text = "\n".join(explained(r) for r in outcome.results_of(part) if r.held is False)
        test = {"name": part, "max_score": outcome.points.get(part, 1.0), "visibility": "visible"}
        if value is None:
            test["output"] = "Not graded: no check of this part could be made."
        else:
            test |= {
                "score": value,
                "status": "failed" if text else "passed",
                "output": text or "All checks hold.",
            }
        tests.append(test)
    text = outcome.error or as_text(outcome)
    results = {"score": outcome.total, "output": text, "visibility": "visible", "tests": tests}
    return json.dumps(results, indent=1)


def as_csv(outcomes: list[Outcome]) -> str:
    """Returns a table with a row for each file."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["file", "held", "of", "not_made", "points", "of_points", "findings", "error"])
    for outcome in outcomes:
        is_graded = any(value is not None for value in outcome.earned().values())
        points = outcome.total if outcome.points and is_graded else ""
        of_points = sum(outcome.points.values()) if outcome.points else ""
        findings = "; ".join(
            f"{r.part}: {r.finding}" + f" ({r.example})" * (r.finding == "raises")
            for r in outcome.of(False)
        )
        counts = [*outcome.grade.values(), outcome.unmade]
        writer.writerow([outcome.file, *counts, points, of_points, findings, outcome.error])
    return rows.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[list[Outcome]], str]] = {
    "text": lambda outcomes: "\n\n".join(outcome.error or as_text(outcome) for outcome in outcomes),
    "json": as_json,
    "gradescope": as_gradescope,
    "csv": as_csv,
}
