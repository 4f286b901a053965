"""Each room imports only rooms before it in docs/architecture.md; every import resolves."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_process
from tests.processes import ENVIRONMENT, ROOT

PACKAGE = ROOT / "imdbattn"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = re.findall(r"^\d+\. \*\*([\w.]+)\*\*:", PAGE.partition("\n## Rooms\n")[2], re.MULTILINE)
COMMANDS = {
    *("train", "evaluate", "predict", "compare", "export", "search", "explore"),
    *("faithfulness", "check", "dashboard"),
}


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {module: ast.parse(file.read_text()) for module, file in FILES.items()}


def room_of(module: str) -> str:
    """What is directly below imdbattn, or a package in tools/; empty for imdbattn itself."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] == "tools" else 1]) if parts else ""


def imported(nodes: Iterator[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields module and name of each import; without a name, the module itself is imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "full module paths are easier to read"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, "") if inner in FILES else (str(node.module), alias.name)


def modules_of(module: str) -> set[str]:
    """The modules that a module imports, also inside functions and for type checkers."""
    return {name for name, _ in imported(ast.walk(TREES[module]))}


def names_in(module: str) -> set[str]:
    """The names that a module has, those for type checkers included."""
    names = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def test_the_list_has_every_room():
    assert {room_of(module) for module in FILES} - {"tools"} == {"", *ROOMS, *COMMANDS}


def test_a_room_imports_only_rooms_before_it():
    """Also inside functions and for type checkers."""
    wrong = []
    for module in FILES:
        room = room_of(module)
        if room in ROOMS:
            allowed = {*ROOMS[: ROOMS.index(room) + 1]}
            inside = [name for name in modules_of(module) if name.partition(".")[0] == "imdbattn"]
            wrong += [f"{module} -> {name}" for name in inside if room_of(name) not in allowed]
    assert not wrong


def test_every_import_of_the_package_resolves():
    wrong = []
    for module, tree in TREES.items():
        for name, inner in imported(ast.walk(tree)):
            if name.partition(".")[0] != "imdbattn":
                continue
            if name not in FILES or (inner and inner not in names_in(name)):
                wrong.append(f"{module} -> {name} {inner}")
    assert not wrong


def test_there_are_no_import_cycles():
    """Also inside functions and for type checkers."""
    graph = {module: (modules_of(module) & FILES.keys()) - {module} for module in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_networks_need_only_torch():
    standard = {"math", "collections", "contextlib", "dataclasses", "functools", "itertools"}
    standard.add("typing")
    for module in FILES:
        if room_of(module) == "nn":
            others = {name.split(".")[0] for name in modules_of(module)}
            assert others <= {"torch", "imdbattn", *standard}, module


def test_nothing_private_of_hydra_or_lightning_is_imported():
    wrong = []
    for module, tree in TREES.items():
        for name, inner in imported(ast.walk(tree)):
            path = f"{name}.{inner}"
            if path.startswith(("hydra.", "lightning.")) and "._" in path:
                wrong.append(f"{module} -> {path}")
    assert not wrong


def names_of(node: ast.stmt) -> list[str]:
    return [getattr(node, "name", ""), *map(ast.unparse, getattr(node, "targets", ()))]


def node_of(module: str, name: str) -> Any:
    """The node of a class, function, method or constant of a module."""
    node: Any = TREES[module]
    for part in name.split("."):
        (node,) = (inner for inner in node.body if part in names_of(inner))
    return node


def test_the_hours_with_the_core_name_what_is_there_and_are_short():
    for part in PAGE.partition("In a second hour")[::2]:
        rows = re.findall(r"^\| \[([\w/]+)\.py\]\(\S+\) \| (.*?) \|", part, re.MULTILINE)
        lines = 0
        for file, names in rows:
            module = f"imdbattn.{file.replace('/', '.')}"
            for name in re.findall(r"`([\w.]+)`", names):
                node = node_of(module, name)
                lines += node.end_lineno - node.lineno + 1
        assert 550 < lines < 700


ONLY_SOME_RUNS = {"launch/job", "launch/job_process", "launch/sweep", "launch/resumed_settings"}
ONLY_SOME_RUNS |= {"folders/run", "tasks/weights", "tasks/chosen_metric", "data/extra"}
ONLY_SOME_RUNS |= {"data/vector_files", "tracking/wandb_logger", "runs/resume", "runs/early_end"}
ONLY_SOME_RUNS |= {"tasks/tuned_words", "tasks/lazy_rows", "tasks/reviews/class_weights"}
ONLY_SOME_RUNS |= {"nn/rollout", "runs/epoch_bar"}


@pytest.mark.slow
def test_a_training_run_loads_few_files(tmp_path):
    """Those that a reader of the main path may have to open, as tests/core_files.py counts them."""
    done = run_process(["-m", "tests.core_files"], tmp_path, ENVIRONMENT)
    *files, last = done.stdout.splitlines()
    lines, _, _, count, _ = last.split()
    assert int(count) <= 41, done.stdout
    assert int(lines) <= 6_700, done.stdout
    loaded = {file.split()[1] for file in files if file.endswith(".py")}
    assert not loaded & {f"{name}.py" for name in ONLY_SOME_RUNS}
