"""Promise 11: imports go downwards only, there are no import cycles, and the main path is short."""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .processes import ROOT

PACKAGE = ROOT / "imdbattn"
BASE = {"settings", "run_folder", "files", "network", "pages", "per_class", "errors"}
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "network": {"errors"},
    "pages": {"files", "settings"},
    "per_class": set(),
    "run_folder": {"errors", "files", "settings"},
    "settings": {"errors", "files"},
    "nn": set(),
    "data": {"errors", "files", "network"},
    "explain": {"nn", *BASE},
    "tasks": {"nn", "data", "explain", *BASE},
    "tracking": {"comparison", *BASE},
    "comparison": BASE,
    "export": {"tasks", "nn", "data", *BASE},
    "runs": {"tasks", "tracking", "explain", "export", "nn", *BASE},
    "api": {"runs", "export", "comparison", "tasks", "explain", "data", *BASE},
    "faithfulness": {"runs", "comparison", "tasks", "explain", "data", "nn", *BASE},
    "explore": {"api", "faithfulness", "runs", "comparison", "tasks", "explain", "data", "nn", *BASE},
    "check": {"nn", "errors"},
    "sweep": {"comparison", "tracking", "data", *BASE},  # data: whether a finished job is on the same data
    "search": {"sweep", "comparison", "data", *BASE},
}
COMMANDS = {"train", "evaluate", "predict", "compare", "dashboard", "__main__"}  # may import anything
PATH = ("train", "runs.fit", "tasks.reviews", "tasks.build", "tasks.learner", "data.corpus", "data.ragged")
PATH += ("nn.ladder", "nn.scores")


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str, late: bool = True) -> set[str]:
    """All modules that its code imports; `late`: also inside functions."""
    found, tree = set(), ast.parse(FILES[module].read_text())
    for node in ast.walk(tree) if late else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: full module paths are easier to read"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in FILES else str(node.module))
    return found


GRAPH = {module: {name for name in imports_of(module) if name in FILES} - {module} for module in FILES}


def part_of(module: str) -> str:
    """The package or module directly below imdbattn, or `__main__`: the command of a package."""
    if module.endswith(".__main__"):
        return "__main__"
    return module.split(".")[1] if "." in module else ""


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
    standard = {"math", "collections", "contextlib", "dataclasses", "functools", "itertools", "typing"}
    for module in FILES:
        if part_of(module) == "nn":
            others = {name.split(".")[0] for name in imports_of(module)}
            assert others <= {"torch", "imdbattn", *standard}, module


def test_nothing_private_of_hydra_is_imported():
    assert not [module for module in FILES if any(name.startswith("hydra._") for name in imports_of(module))]


def test_the_main_path_is_short():
    lines = {name: len(FILES[f"imdbattn.{name}"].read_text().splitlines()) for name in PATH}
    assert lines["nn.ladder"] <= 300
    assert sum(lines.values()) <= 1600, lines


def test_training_loads_few_modules():
    """Those that a reader of the main path may have to open."""
    loaded, waiting = set(), ["imdbattn.train", "imdbattn.runs.fit", "imdbattn.tasks.reviews"]
    while waiting:
        name = waiting.pop()
        if name in FILES and name not in loaded:
            loaded.add(name)
            waiting += [name.rpartition(".")[0], *imports_of(name, late=False)]
    assert len(loaded) <= 48, sorted(loaded)
