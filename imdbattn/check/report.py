"""What the checker prints: for people and for programs."""

import json
import textwrap

from imdbattn.check import PARTS
from imdbattn.check.process import Outcome

WIDTH = 100


def score(outcome: Outcome) -> tuple[int, int]:
    """Checks that hold, and checks that apply."""
    return sum(r["held"] is True for r in outcome.results), sum(r["held"] is not None for r in outcome.results)


def as_json(file: str, outcome: Outcome) -> str:
    held, of = score(outcome)
    page = {
        "version": 1,
        "file": file,
        "score": {"held": held, "of": of},
        "parts": list(outcome.parts),
        "not_found": [part for part in PARTS if part not in outcome.parts],
        "checks": outcome.results,
        "printed": printed(outcome),
    }
    return json.dumps(page, indent=1)


def as_text(outcome: Outcome) -> str:
    """Checks that hold, findings, checks that were not made, and the score."""
    lines = [wrapped(f"ok     {r['part']}: ", r["sentence"]) for r in outcome.results if r["held"]]
    for result in outcome.results:
        if result["held"] is False and result["finding"] != "blocked":
            lines += ["", wrapped(f"WRONG  {result['part']}: ", f"{result['finding']}. {result['sentence']}")]
            lines += [wrapped("       Example: ", result["example"])] if result["example"] else []
            lines += [wrapped("       Change:  ", result["fix"])] if result["fix"] else []
    lines.append("")
    notes = dict.fromkeys(f"{r['part']}: {r['sentence']}" for r in outcome.results if r["held"] is None)
    lines += [wrapped("note   ", note) for note in notes]
    blocked: dict[str, list[str]] = {}
    unwritten = {result["part"] for result in outcome.results if result["finding"] == "not-written-yet"}
    for result in outcome.results:
        if result["finding"] == "blocked" and result["part"] not in unwritten:
            blocked.setdefault(result["part"], []).append(result["check"])
    if blocked:
        text = "; ".join(f"{part}: {', '.join(checks)}" for part, checks in blocked.items())
        lines.append(wrapped("note   ", f"Not checked before the above is corrected: {text}."))
    absent = [part for part in PARTS if part not in outcome.parts]
    if absent and outcome.parts:
        lines.append(wrapped("note   ", f"Not in the file: {', '.join(absent)}."))
    if text := printed(outcome):
        lines.append(wrapped("note   ", f"The file printed: {text[-300:]}"))
    held, of = score(outcome)
    lines.append(f"{held} of {of} checks hold.")
    return "\n".join(lines).lstrip("\n")


def wrapped(start: str, text: str) -> str:
    indent = " " * (len(start) - len(start.lstrip()) or 7)
    text = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def printed(outcome: Outcome) -> str:
    return outcome.printed.decode(errors="replace").strip()
