"""Sheets of exercises: which classes and functions they ask for, how these are made and called, and
with which part they are compared. A sheet is a YAML file; those of the package are in sheets/.

Expressions of a sheet are Python; they are run like the solution that is checked.
"""

import inspect
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from imdbattn.errors import UserError, wrapping_errors
from imdbattn.tools.check.tables import SIGNATURES

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
FOLDER = Path(__file__).parent / "sheets"
PROJECT = "project"
SHEETS = [PROJECT, *sorted({file.stem for file in FOLDER.glob("*.yaml")} - {PROJECT})]


@dataclass
class CallForm:
    """One way to call a part: patterns of arguments' names, as "mask|masks", and expressions."""

    arguments: dict[str, str]
    says: str = ""  # what is noted if the solution is called so
    result: str = "y"  # the part's result, from that of the call

    @property
    def masks(self) -> list[str]:
        """The patterns of the arguments that are a mask or lengths."""
        return [k for k, v in self.arguments.items() if "mask" in v or "lengths" in v]

    @property
    def is_given_padding(self) -> bool:
        """Whether it is given a mask that is True, or 1, on padding."""
        values = self.arguments.values()
        return any("~mask" in value and "torch.zeros" not in value for value in values)


def pattern_of(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that the name of an argument matches; None if there is none."""
    return next((pattern for pattern in patterns if re.fullmatch(pattern, name)), None)


@dataclass
class Entry:
    """A part that a sheet asks for. Of several kinds, the first that the solution agrees with is
    taken.
    """

    name: str
    names: list[str]  # patterns of the names that it may have
    kinds: list[str]
    call_forms: list[CallForm]
    signature: str
    uses_project_signature: bool  # it is made and called as its kind is in this project
    make: dict[str, Any] = field(default_factory=dict)
    method: str = ""  # the method that is called instead of forward
    sizes: dict[str, Any] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)  # patterns; one argument must match
    unless: list[str] = field(default_factory=list)  # patterns; no argument may match
    free: bool = False  # a class that has other arguments is not checked, and not wrong
    any_name: bool = False  # the name does not show that the sheet is meant
    optional: bool = False  # it is not listed as absent
    change: str = ""
    stub: str = ""

    def fits(self, name: str, obj: object) -> bool:
        """Returns whether the class or function may be this one, by its name and its arguments."""
        if not any(re.fullmatch(pattern, name) for pattern in self.names):
            return False
        if self.uses_project_signature:
            return True
        if self.method and not hasattr(obj, self.method):
            return False
        if not self.method and isinstance(obj, type) != self.is_module:
            return False
        if self.any_name and isinstance(obj, type) and not self.can_be_called(obj):
            return False
        parameters = parameters_of(obj)
        if self.needs and not any(pattern_of(name, self.needs) for name in parameters):
            return False
        return not any(pattern_of(name, self.unless) for name in parameters)

    def can_be_called(self, obj: Any) -> bool:
        """Returns whether a class takes as many arguments as one of the calls has; a mask may be
        absent.
        """
        if (forward := getattr(obj, "forward", None)) is None:
            return False
        parameters = parameters_of(forward)
        least, most = len(unknown(parameters, ())), len(parameters)
        return any(least <= len(form.arguments) <= most + 1 for form in self.call_forms)

    @property
    def is_module(self) -> bool:
        return "(" in SIGNATURES[self.kinds[0]].partition(":")[0] or bool(self.make)

    def count_known_arguments(self, obj: Any) -> int:
        """Returns how many arguments of the class or function have a name that the sheet knows."""
        known = [*self.make, *(key for form in self.call_forms for key in form.arguments)]
        names = arguments_named(obj, self.method or "forward")
        return sum(pattern_of(name, known) is not None for name in names)


@dataclass
class Sheet:
    name: str
    title: str
    entries: list[Entry]
    about: str = ""  # what its stub says first

    @property
    def parts(self) -> list[str]:
        """Those that a report lists as absent: those with names of their own."""
        return [entry.name for entry in self.entries if not (entry.any_name or entry.optional)]

    @property
    def stub(self) -> str:
        """A file with empty functions."""
        text = f"{self.title}: fill in what raises NotImplementedError."
        text += f"\n\n{self.about}" * bool(self.about)
        stubs = [entry.stub.strip() for entry in self.entries if entry.stub]
        return "\n\n\n".join([f'"""{text}"""', *stubs]) + "\n"


def parameters_of(obj: Any) -> dict[str, inspect.Parameter]:
    """Returns the named parameters of a function, method or class, without self."""
    try:
        found = dict(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return {}
    found.pop("self", None)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: parameter for name, parameter in found.items() if parameter.kind not in kinds}


def load(name: str) -> Sheet:
    """Returns a sheet of the package by its name, or that of a YAML file, with the parts of the
    sheet that its key `with` names. Raises UserError.
    """
    file = FOLDER / f"{name}.yaml" if name in SHEETS else Path(name)
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"there is no sheet {name!r}: {', '.join(SHEETS)}, or a YAML file")
    content = yaml.load(file.read_text(encoding="utf-8"), LOADER)  # noqa: S506
    entries: list[Entry] = []
    with wrapping_errors(f"{name} is not a sheet with parts"):
        parts = content["parts"].items()
    for part, keys in parts:
        with wrapping_errors(f"{name}: {part}"):
            entries.append(entry_of(part, keys))
    if content.get("with"):
        entries += [replace(entry, optional=True) for entry in load(content["with"]).entries]
    title = str(content.get("title", file.stem))
    return Sheet(file.stem, title, entries, str(content.get("about", "")))


def entry_of(part: str, keys: dict[str, Any]) -> Entry:
    if "kind" not in keys:
        raise UserError("it needs a kind")
    kinds = as_list(keys["kind"])
    if wrong := [kind for kind in kinds if kind not in SIGNATURES]:
        raise UserError(f"there is no kind {wrong[0]!r}; {', '.join(SIGNATURES)}")
    signature = SIGNATURES[kinds[0]]
    calls = keys.get("calls", {name: name for name in re.findall(r"\w+", signature)})
    defaults = {"names": re.escape(part), "needs": [], "unless": []}
    patterns = {key: as_list(keys.get(key, default)) for key, default in defaults.items()}
    for pattern in itertools.chain(keys.get("make", {}), *patterns.values()):
        re.compile(pattern)
    others: dict[str, Any] = {"signature": signature, "uses_project_signature": "calls" not in keys}
    others |= {key: value for key, value in keys.items() if key not in ("kind", "calls")} | patterns
    return Entry(part, kinds=kinds, call_forms=[*map(call_form_of, as_list(calls))], **others)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def call_form_of(call: dict[str, Any]) -> CallForm:
    known = ("says", "result")
    arguments = {k: str(v) for k, v in call.items() if k not in known}
    return CallForm(arguments, **{k: str(v) for k, v in call.items() if k in known})


def choose_sheet(sheets: list[Sheet], namespace: Mapping[str, Any]) -> Sheet:
    """Returns the sheet that most of these classes and functions of a file belong to, by their
    names. Of equal numbers, the names of arguments decide. The first sheet is that of the project.
    """
    best, best_rank = sheets[0], (0, 0, False)
    project: list[str] = []
    for sheet in sheets:
        found = [
            match for match in matches(sheet, namespace) if not exchanges_masks(match[0], match[2])
        ]
        project += [name for entry, name, _ in found if entry.uses_project_signature]
        sure = {
            entry.name: (entry, obj)
            for entry, name, obj in found
            if not entry.any_name or (entry.needs and name not in project)
        }
        agreement = sum(entry.count_known_arguments(obj) for entry, obj in sure.values())
        rank = len(sure), agreement, bool(found)
        if rank > best_rank:
            best, best_rank = sheet, rank
    return best


def exchanges_masks(entry: Entry, obj: Any) -> bool:
    """Returns whether it takes lengths instead of the mask of the signature, or vice versa."""
    names = " ".join(arguments_named(obj))
    words = [word for word in ("len", "mask") if word in names]
    has_either = "len" in entry.signature or "mask" in entry.signature
    return has_either and len(words) == 1 and words[0] not in entry.signature


def arguments_named(obj: Any, method: str = "forward") -> set[str]:
    """Returns the names of the arguments of a class, of its method, or of a function."""
    called = getattr(obj, method, None) if isinstance(obj, type) else None
    return {*parameters_of(obj), *(parameters_of(called) if called else ())}


def matches(sheet: Sheet, namespace: Mapping[str, Any]) -> list[tuple[Entry, str, Any]]:
    """Returns the sheet's entries that the file has, with the name and the class or function.

    These belong to the first entry that they fit, and to each entry that has a method.
    """
    found: list[tuple[Entry, str, Any]] = []
    taken: set[int] = set()
    for entry in sheet.entries:
        for name, obj in namespace.items():
            if entry.fits(name, obj) and (entry.method or id(obj) not in taken):
                found.append((entry, name, obj))
                if not entry.method:
                    taken.add(id(obj))
    return found


def unknown(parameters: Mapping[str, inspect.Parameter], patterns: Iterable[str]) -> list[str]:
    """Returns the required arguments that match none of the patterns."""
    empty = inspect.Parameter.empty
    required = [name for name, parameter in parameters.items() if parameter.default is empty]
    return [name for name in required if pattern_of(name, patterns) is None]
