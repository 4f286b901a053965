"""What may have been meant instead of a value, an operator or a name in a student's code.

Each function is given a place and the expression there, and yields other expressions.
"""

import ast
import itertools
from collections.abc import Iterator

from imdbattn.tools.check.lines.places import (
    Place,
    called_name,
    is_of_self,
    says_mask,
    whole_number,
)

Expressions = Iterator[ast.expr]

AXES = (-1, -2, 1, 0, 2, -3)
# functions whose integers are axes, or numbers of heads and words
WITH_AXES = {
    *("softmax", "log_softmax", "sum", "mean", "cat", "stack", "transpose", "permute", "size"),
    *("unsqueeze", "squeeze", "argmax", "max", "cumsum", "flatten", "chunk", "split", "Softmax"),
}
FILLS = ("masked_fill", "masked_fill_", "where", "full_like")
COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt, ast.GtE),
    ast.Gt: (ast.GtE, ast.LtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
COMPUTED = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}


def axis(place: Place, node: ast.expr) -> Expressions:
    """Another axis of softmax, sum, cat and others."""
    value = whole_number(node)
    if value is None:
        return
    holder = place.holder
    is_axis = isinstance(holder, ast.keyword) and holder.arg in ("dim", "axis", "dims")
    if isinstance(holder, ast.Call) and called_name(holder) in WITH_AXES:
        is_axis = True
    if isinstance(holder, ast.keyword) and holder.arg in ("diagonal", "k", "offset"):
        yield from (ast.Constant(other) for other in (0, 1, -1) if other != value)
    if is_axis or is_index_of_shape(place):
        yield from (ast.Constant(other) for other in AXES if other != value)


def is_index_of_shape(place: Place) -> bool:
    holder = place.holder
    return (
        isinstance(holder, ast.Subscript)
        and place.name == "slice"
        and getattr(holder.value, "attr", "") == "shape"
    )


def index(place: Place, node: ast.expr) -> Expressions:
    """The last, the first or the second element instead of another one."""
    value = whole_number(node)
    if value is not None and isinstance(place.holder, ast.Subscript | ast.Tuple):
        yield from (ast.Constant(x) for x in (-1, 0, 1) if x != value)


def number(place: Place, node: ast.expr) -> Expressions:
    """A number that is one larger or smaller, or has the other sign."""
    value = whole_number(node)
    if value is not None:
        others = (value + 1, value - 1, -value)
        yield from (ast.Constant(x) for x in dict.fromkeys(others) if x != value)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        others_f = [-node.value, 10000.0, -1e9, 1e9, 0.5, 1.0]
        yield from (ast.Constant(x) for x in others_f if x != node.value)


def fill(place: Place, node: ast.expr) -> Expressions:
    """-1e9 for another fill of masked scores."""
    holder = place.holder
    is_fill = isinstance(holder, ast.Call) and called_name(holder) in FILLS
    is_value = isinstance(node, ast.Constant | ast.UnaryOp | ast.Call)
    if is_fill and place.name == "args" and is_value:
        yield ast.Constant(-1e9)
        yield ast.Constant(0.0)


def flag(place: Place, node: ast.expr) -> Expressions:
    """False for True."""
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)


def comparison(place: Place, node: ast.expr) -> Expressions:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARED.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [other()], node.comparators)


def negation(place: Place, node: ast.expr) -> Expressions:
    """Without ~, - or not; with ~ for a mask."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.USub | ast.Not):
        yield node.operand
    elif isinstance(node, ast.Compare) or is_mask(node):
        yield ast.UnaryOp(ast.Invert(), node)


def is_mask(node: ast.AST) -> bool:
    """Whether a name in the expression says that it is a mask."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return False
    names = [getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node)]
    return any(map(says_mask, names))


def operator(place: Place, node: ast.expr) -> Expressions:
    if isinstance(node, ast.BinOp):
        for other in COMPUTED.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)


def operand(place: Place, node: ast.expr) -> Expressions:
    """One side of a sum or of a product only."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.FloorDiv | ast.Mod):
        yield node.left
        yield node.right


def root(place: Place, node: ast.expr) -> Expressions:
    """The square root of a factor, or the factor instead of its root."""
    holder = place.holder
    is_factor = isinstance(holder, ast.BinOp) and isinstance(holder.op, ast.Div | ast.Mult)
    if is_factor and not isinstance(node, ast.BinOp):
        if isinstance(node, ast.Call) and called_name(node) in ("sqrt", "rsqrt") and node.args:
            yield node.args[0]
        else:
            yield ast.BinOp(node, ast.Pow(), ast.Constant(0.5))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        yield node.left


def doubled(place: Place, node: ast.expr) -> Expressions:
    """Twice the dividend."""
    holder = place.holder
    if isinstance(holder, ast.BinOp) and isinstance(holder.op, ast.Div) and place.name == "left":
        yield ast.BinOp(ast.Constant(2), ast.Mult(), node)


def added(place: Place, node: ast.expr) -> Expressions:
    """What is returned or assigned, added to something else."""
    if isinstance(place.holder, ast.Return | ast.Assign) and place.name == "value":
        for name in place.scope.names:
            yield ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), node)


def exchanged(place: Place, node: ast.expr) -> Expressions:
    """Two arguments, sides or elements exchanged."""
    if isinstance(node, ast.Call):
        for i, j in itertools.combinations(range(len(node.args)), 2):
            given = list(node.args)
            given[i], given[j] = given[j], given[i]
            yield ast.Call(node.func, given, node.keywords)
    elif isinstance(node, ast.BinOp):
        yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 2:
        yield type(node)(node.elts[::-1], node.ctx)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)


def variable(place: Place, node: ast.expr) -> Expressions:
    """Another name of the function."""
    is_name = isinstance(node, ast.Name) and node.id in place.scope.names
    is_none = isinstance(node, ast.Constant) and node.value is None and place.name == "args"
    # (y, y) is hardly meant, and rows.append(rows) has no end
    holder = place.holder
    beside = holder.elts if isinstance(holder, ast.Tuple) else []
    if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute):
        beside = [holder.func.value]
    others = {getattr(one, "id", "") for one in beside}
    for name in place.scope.names if is_name or is_none else ():
        if name not in others and name != getattr(node, "id", ""):
            yield ast.Name(name, ast.Load())


def attribute(place: Place, node: ast.expr) -> Expressions:
    """Another attribute that is made in the same way."""
    if isinstance(node, ast.Attribute) and is_of_self(node):
        made = place.scope.attributes
        for name, how in made.items():
            if name != node.attr and made.get(node.attr) == how:
                yield ast.Attribute(node.value, name, ast.Load())


def part_of(place: Place, node: ast.expr) -> Expressions:
    """The last, or first, layer or word; the whole instead of a part."""
    if isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.Name | ast.Call) and place.name != "func":
        for at in (-1, 0):
            yield ast.Subscript(node, ast.Constant(at), ast.Load())


def ends(place: Place, node: ast.expr) -> Expressions:
    """Another end of a slice: [:n] for [n:], [-n:] or [1:n]."""
    if not isinstance(node, ast.Slice):
        return
    for end in (node.lower, node.upper):
        if end is not None:
            plain = end.operand if isinstance(end, ast.UnaryOp) else end
            yield ast.Slice(None, plain)
            yield ast.Slice(plain, None)
    if node.step is not None:
        start = 0 if node.lower and whole_number(node.lower) == 1 else 1
        yield ast.Slice(ast.Constant(start), node.upper, node.step)
    yield ast.Slice()
