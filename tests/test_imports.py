"""Imports go downwards only, there are no import cycles, and the main path is short."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .processes import ROOT

PACKAGE = ROOT / "imdbattn"
BASE = {"errors", "io", "settings"}
TOOLS = {
    f"tools.{name}" for name in ("explain", "explore", "faithfulness", "check", "search", "export")
}
CORE = {"errors", "io", "settings", "nn", "data", "tasks", "runs"}
MAY_IMPORT = {
    "errors": set(),
    "io": {"errors"},
    "settings": {"errors"},
    "nn": set(),
    "data": {"errors", "io", "settings"},
    "tasks": {"nn", "data", "runs", *BASE},
    "runs": {"data", "tasks", "tracking", "tools.export", *BASE},
    "tracking": {"tasks", "runs", "report", "tools.export", *BASE},
    "report": {"tasks", "runs", *BASE},
    "launch": {"data", "tasks", "runs", "tracking", "report", *BASE},
    "api": {
        *("data", "tasks", "runs", "report", "launch"),
        *("tools.explain", "tools.export", "tools.explore", *BASE),  # Model.page, without a server
    },
    "tools": set(),
    "tools.explain": {"nn", "data", "tasks", "runs", "report", *BASE},
    "tools.export": {"nn", "data", "tasks", "runs", "report", *BASE},
    "tools.faithfulness": {"nn", "data", "tasks", "runs", "report", "tools.explain", *BASE},
    "tools.explore": {
        *("nn", "data", "tasks", "runs", "report", "api"),
        *("tools.explain", "tools.export", "tools.faithfulness", *BASE),
    },
    "tools.check": {"nn", "errors"},
    "tools.search": {"data", "tasks", "runs", "report", "launch", *BASE},
}
COMMANDS = {
    *("train", "evaluate", "predict", "compare", "export", "search", "explore"),
    *("faithfulness", "check", "dashboard"),
}  # may import anything


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str, late: bool = True) -> set[str]:
    """All modules that its code imports; `late`: also inside functions."""
    found, tree = set(), ast.parse(FILES[module].read_text())
    for node in ast.walk(tree):  # imports for type checkers are not executed
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: full module paths are easier to read"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in FILES else str(node.module))
    return found


GRAPH = {
    module: {name for name in imports_of(module) if name in FILES} - {module} for module in FILES
}


def part_of(module: str) -> str:
    """The room of a module: what is directly below imdbattn, or a package in tools/."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["tools"] else 1])


def test_every_module_has_a_level():
    assert {part_of(module) for module in FILES} == {"", *MAY_IMPORT, *COMMANDS}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_go_downwards_only(part):
    upwards = defaultdict(set)
    for module in FILES:
        if part_of(module) == part:
            for name in GRAPH[module]:
                if part_of(name) not in {"", part, *MAY_IMPORT[part]}:
                    upwards[module].add(name)
    assert not upwards


def test_there_are_no_import_cycles():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_networks_need_only_torch():
    standard = {
        "math",
        "collections",
        "contextlib",
        "dataclasses",
        "functools",
        "itertools",
        "typing",
    }
    for module in FILES:
        if part_of(module) == "nn":
            others = {name.split(".")[0] for name in imports_of(module)}
            assert others <= {"torch", "imdbattn", *standard}, module


def test_nothing_private_of_hydra_is_imported():
    assert not [
        module for module in FILES if any(name.startswith("hydra._") for name in imports_of(module))
    ]


ONLY_SOME_RUNS = {
    *("launch.job", "launch.sweep", "launch.resumed_settings", "runs.run", "tasks.weights"),
    *("tasks.chosen_metric", "tracking.loggers", "data.extra", "data.vectors.downloads"),
}


def test_training_loads_few_modules():
    """Those that a reader of the main path may have to open."""
    loaded, waiting = (
        set(),
        ["imdbattn.train", "imdbattn.runs.fit", "imdbattn.tasks.reviews.classifier"],
    )
    while waiting:
        name = waiting.pop()
        if name in FILES and name not in loaded:
            loaded.add(name)
            waiting += [name.rpartition(".")[0], *imports_of(name, late=False)]
    assert len(loaded) <= 51, sorted(loaded)
    assert not loaded & {f"imdbattn.{name}" for name in ONLY_SOME_RUNS}
