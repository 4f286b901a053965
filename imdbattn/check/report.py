"""The outcome of a check, for people, programs and graders."""

import csv
import html
import io
import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from imdbattn.check.source import PARTS

WIDTH = 100


def result_of(
    part: str, check: str, held: bool | None, finding: str | None, sentence: str, example: str = "", fix: str = ""
) -> dict[str, Any]:
    """held: None if it could not be checked. finding: "blocked" if a rule that must hold first does not, "not-checked"
    if the checker itself raised an exception. sentence: what holds, or what is wrong.
    """
    return locals()


@dataclass
class Outcome:
    """What was found in a file. results: those of result_of."""

    file: str = ""
    parts: dict[str, list[str]] = field(default_factory=dict)  # parts of the file -> names of their checks
    near: dict[str, str] = field(default_factory=dict)  # parts that are missing -> names in the file that may be meant
    results: list[dict[str, Any]] = field(default_factory=list)
    points: dict[str, float] = field(default_factory=dict)  # the most that a part can have
    doing: list[str] = field(default_factory=list)  # part and check
    printed: str = ""  # the end of what the file printed
    done: bool = False
    error: str = ""  # why the file could not be checked

    def take(self, message: dict[str, Any]) -> None:
        """A message of parts.check: a result, or values of other fields."""
        if "result" in message:
            self.results.append(message["result"])
        else:
            vars(self).update(message)

    def require(self, parts: Iterable[str]) -> None:
        """Adds a finding for each of these parts that the file does not have, if it could be imported."""
        for part in parts if self.parts else ():
            if part not in self.parts:
                sentence = f"{part} is not in the file.{self.hint(part)}"
                self.results.append(result_of(part, "present", False, "missing", sentence))

    def hint(self, part: str) -> str:
        return f" {self.near[part]} may be meant: --name {part}={self.near[part]}." if part in self.near else ""

    def made(self, part: str | None = None) -> list[bool]:
        """Whether each check that was made holds; of one part, or of all."""
        return [r["held"] for r in self.results if r["held"] is not None and part in (None, r["part"])]

    @property
    def wrong(self) -> list[dict[str, Any]]:
        return [result for result in self.results if result["held"] is False]

    @property
    def unmade(self) -> int:
        return sum(result["finding"] in ("blocked", "not-checked") for result in self.results)

    def scored(self) -> dict[str, float | None]:
        """The points of each part: in proportion to the checks that hold; None if none could be made."""
        most = self.points or dict.fromkeys(self.parts, 1.0)
        made = {part: self.made(part) for part in most}
        return {part: round(most[part] * sum(held) / len(held), 4) if held else None for part, held in made.items()}

    @property
    def total(self) -> float:
        return round(sum(filter(None, self.scored().values())), 4)

    @property
    def passed(self) -> bool:
        """Whether checks were made, all of them hold, and the checker itself did not fail."""
        return self.status == 0

    @property
    def status(self) -> int:
        """0 if all checks hold, 1 if not, 2 if none was made or the checker itself raised an exception."""
        made, failed = self.made(), any(r["finding"] == "not-checked" for r in self.results)
        return 1 if not all(made) else 2 if failed or not made else 0

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        rows = [["part", "check", "result", "finding", "why, and what to change"]]
        for r in self.results:
            mark = {True: "ok", False: "WRONG", None: "not checked"}[r["held"]]
            text = " ".join(filter(None, (r["sentence"], r["example"], r["fix"])))
            rows.append([r["part"], r["check"], mark, r["finding"] or "", text])
        cells = ("".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table><p>{summary(self)}</p>"


def summary(outcome: Outcome) -> str:
    made = outcome.made()
    text = f"{sum(made)} of {len(made)} checks hold." + f" {outcome.unmade} could not be made." * bool(outcome.unmade)
    if outcome.points:
        text += f" {outcome.total:g} of {sum(outcome.points.values()):g} points."
        missing = ", ".join(part for part, value in outcome.scored().items() if value is None)
        text += f" Not scored, because no check could be made: {missing}." * bool(missing)
    return text


def explained(results: list[dict[str, Any]]) -> str:
    """Findings, each with its example and what to change."""
    lines = []
    for r in results:
        lines.append(wrapped(f"WRONG  {r['part']}: ", f"{r['finding']}. {r['sentence']}"))
        lines += [wrapped("       Example: ", r["example"])] if r["example"] else []
        lines += [wrapped("       Change:  ", r["fix"])] if r["fix"] else []
    return "\n".join(lines)


def as_text(outcome: Outcome) -> str:
    """Checks that hold, findings, checks that were not made, and the score."""
    blocks = ["\n".join(wrapped(f"ok     {r['part']}: ", r["sentence"]) for r in outcome.results if r["held"])]
    blocks += [explained([result]) for result in outcome.wrong]
    unwritten = {result["part"] for result in outcome.results if result["finding"] == "not-written-yet"}
    notes, waiting = [], dict[str, list[str]]()
    for r in outcome.results:
        if r["held"] is None and r["finding"] != "blocked":
            notes.append(f"{r['part']}: {r['sentence']}")
        elif r["held"] is None and r["part"] not in unwritten:
            waiting.setdefault(r["part"], []).append(r["check"])
    if waiting:
        text = "; ".join(f"{part}: {', '.join(checks)}" for part, checks in waiting.items())
        notes.append(f"Not checked before the above is corrected: {text}.")
    absent = [part for part in PARTS if part not in outcome.parts]
    if absent and outcome.parts and outcome.file:
        notes.append(f"Not in the file: {', '.join(absent)}.{''.join(map(outcome.hint, absent))}")
    notes += [f"The file printed: {outcome.printed[-300:]}"] if outcome.printed else []
    end = [*(wrapped("note   ", note) for note in dict.fromkeys(notes)), summary(outcome)]
    return "\n\n".join(filter(None, [*blocks, "\n".join(end)]))


def wrapped(start: str, text: str) -> str:
    indent = " " * (len(start) - len(start.lstrip()) or 7)
    text = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def page(outcome: Outcome) -> dict[str, Any]:
    if outcome.error:
        return {"version": 1, "file": outcome.file, "error": outcome.error}
    made = outcome.made()
    return {
        "version": 1,
        "file": outcome.file,
        "score": {"held": sum(made), "of": len(made)},
        "points": outcome.scored() if outcome.points else None,
        "parts": list(outcome.parts),
        "not_found": [part for part in PARTS if part not in outcome.parts],
        "checks": outcome.results,
        "printed": outcome.printed,
    }


def as_json(outcomes: list[Outcome]) -> str:
    return json.dumps(page(outcomes[0]) if len(outcomes) == 1 else [*map(page, outcomes)], indent=1)


def as_gradescope(outcomes: list[Outcome]) -> str:
    """results.json of Gradescope: one test for each part, without a score if no check of it could be made."""
    (outcome,) = outcomes
    tests = []
    for part, value in outcome.scored().items():
        text = explained([result for result in outcome.wrong if result["part"] == part])
        test = {"name": part, "max_score": outcome.points.get(part, 1.0), "visibility": "visible"}
        if value is None:
            test["output"] = "Not scored: no check of this part could be made."
        else:
            test |= {"score": value, "status": "failed" if text else "passed", "output": text or "All checks hold."}
        tests.append(test)
    text = outcome.error or as_text(outcome)
    return json.dumps({"score": outcome.total, "output": text, "visibility": "visible", "tests": tests}, indent=1)


def as_junit(outcomes: list[Outcome]) -> str:
    root = ElementTree.Element("testsuites")
    for outcome in outcomes:
        suite = ElementTree.SubElement(root, "testsuite", name=outcome.file)
        cases = [("file", "read", "error", outcome.error)] if outcome.error else []
        for r in outcome.results:
            tag = "failure" if r["held"] is False else "error" if r["finding"] == "not-checked" else "skipped"
            text = explained([r]) if r["held"] is False else wrapped("", r["sentence"])
            cases.append((r["part"], r["check"], "" if r["held"] else tag, text))
        for part, check, tag, text in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=part, name=check)
            if tag:
                ElementTree.SubElement(case, tag, message=text.partition("\n")[0]).text = text
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len([*suite.iter(tag)])))
    return ElementTree.tostring(root, "unicode", xml_declaration=True)


def as_csv(outcomes: list[Outcome]) -> str:
    """One row for each file."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["file", "held", "of", "not_made", "points", "of_points", "findings", "error"])
    for outcome in outcomes:
        made, findings = outcome.made(), [f"{r['part']}: {r['finding']}" for r in outcome.wrong]
        points = [outcome.total, sum(outcome.points.values())] if outcome.points else ["", ""]
        rows.writerow([outcome.file, sum(made), len(made), outcome.unmade, *points, "; ".join(findings), outcome.error])
    return out.getvalue().rstrip("\n")


FORMATS = {
    "text": lambda outcomes: "\n\n".join(outcome.error or as_text(outcome) for outcome in outcomes),
    "json": as_json,
    "gradescope": as_gradescope,
    "junit": as_junit,
    "csv": as_csv,
}
