"""The tests use public names only, and import helpers from helper files."""

import ast
from collections.abc import Iterator

from tests.processes import ROOT

FILES = [file for file in sorted((ROOT / "tests").rglob("*.py")) if "solutions" not in file.parts]
LIBRARIES = ("hydra", "lightning", "omegaconf", "torch", "wandb", "datasets", "importlib")
# the only way to record the operations of torch without a GPU
ALLOWED = {
    "tests/data/test_word_vectors.py": {"ssl._create_default_https_context"},  # torchtext sets it
    "tests/recording.py": {
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.ops.aten._local_scalar_dense",
        "torch.ops.aten._local_scalar_dense.default",
    },
}


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the dotted path of everything that a file imports, and its name in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}", alias.asname or alias.name


def is_private(path: str) -> bool:
    return any(name.startswith("_") and not name.endswith("__") for name in path.split("."))


def private_names(tree: ast.Module) -> set[str]:
    """Returns the private names of LIBRARIES that a file imports, or reads from what it imports."""
    paths = {name: path for path, name in imported(tree) if path.startswith(LIBRARIES)}
    found = {path for path in paths.values() if is_private(path)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *rest = ast.unparse(node).split(".")
            of_library = root in paths and is_private(".".join(rest))
            assigned = isinstance(node.ctx, ast.Store) and root != "self" and is_private(node.attr)
            if of_library or assigned:
                found.add(ast.unparse(node))
    return found


def test_no_private_name_of_a_library_is_used():
    wrong = {}
    for file in FILES:
        name = str(file.relative_to(ROOT))
        found = private_names(ast.parse(file.read_text()))
        wrong |= {name: found} if found - ALLOWED.get(name, set()) else {}
    assert not wrong


def test_no_file_of_tests_is_imported():
    """Helpers stand in files of their own."""
    for file in FILES:
        wrong = [
            path for path, _ in imported(ast.parse(file.read_text())) if ".test_" in f".{path}"
        ]
        assert not wrong, (file, wrong)
