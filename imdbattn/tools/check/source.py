"""Reads a file: Python, or the definitions in the cells of a notebook."""

import ast
import dis
import json
import linecache
import re
import sys
import tokenize
from pathlib import Path
from types import CodeType, ModuleType

from imdbattn.errors import UserError, one_line
from imdbattn.tools.check.tables import SIGNATURES

Code = list[tuple[str, ast.Module]]  # the name for tracebacks: the file, or the file and the cell


def read(file: str) -> Code:
    """Returns the code of a .py file or a notebook's cells. Raises UserError if it is neither."""
    is_notebook = file.endswith(".ipynb")
    try:
        if is_notebook:
            return definitions(file)
        with tokenize.open(file) as stream:  # its first lines declare the encoding
            return [(file, ast.parse(stream.read(), file))]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = "a notebook" if is_notebook and not isinstance(error, SyntaxError) else "Python"
        raise UserError(f"{file} is not {what} ({one_line(error)})") from error


def definitions(file: str) -> Code:
    """Returns the classes and functions of a notebook, and the imports and assignments that they
    need; nothing else is run.
    """
    notebook = json.loads(Path(file).read_text(encoding="utf-8"))
    cells: Code = []
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell["source"])
        # %%bash, for example, is not Python.
        if cell["cell_type"] == "code" and not re.match(r"%%(?!time|capture)", source):
            # lines for IPython; a shell command may have several
            source = re.sub(r"(?m)^(\s*)(%%?[a-z]|!|\?)(.*\\\n)*.*$", r"\1pass", source)
            source = re.sub(r"(?m)^(\s*)[\w.]+\?+\s*$", r"\1pass", source)
            source = re.sub(r"(?m)^(\s*[\w.]+\s*=)\s*[!%].*$", r"\1 None", source)
            name = f"{file} of cell {number}"
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            cells.append((name, ast.parse(source, f"cell {number}")))
    rest = [node for _, tree in cells for node in tree.body]
    kept: list[ast.stmt] = []
    definition = ast.FunctionDef | ast.ClassDef
    more: list[ast.stmt] = [
        node for node in rest if isinstance(node, definition) or bound(node) & SIGNATURES.keys()
    ]
    while more:
        kept += more
        needed = loaded(compile(ast.Module(kept, []), file, "exec"))
        more = [node for node in rest if node not in kept and bound(node) & needed]
    for _, tree in cells:
        tree.body = [node for node in tree.body if node in kept]
    return cells


def loaded(code: CodeType) -> set[str]:
    """Returns the global names that the code uses, also within its functions."""
    names = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_NAME", "LOAD_GLOBAL")
    }
    return names.union(*(loaded(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def bound(node: ast.stmt) -> set[str]:
    """Returns the names that an import or an assignment defines, also one within if or try."""
    if isinstance(node, ast.If | ast.Try):
        inner = [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node]
        return set().union(*map(bound, inner))
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        # This includes Part in Part.forward = ...
        return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return set()


def load(file: str) -> ModuleType:
    """Returns the file as a module, whatever its name; it can import files in its folder."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(file).parent))
    # dataclasses look it up there
    module = sys.modules["_checked_file"] = ModuleType("_checked_file")
    module.__file__ = file
    for name, tree in read(file):
        exec(compile(tree, name, "exec"), vars(module))
    return module
