"""Small changes of a student's code, as an abstract syntax tree: what one line may have been meant
to be.
"""

import ast
import copy
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Expressions = Iterator[ast.expr]
Put = Callable[[Any], None]
Function = ast.FunctionDef | ast.AsyncFunctionDef

AXES = (-1, -2, 1, 0, 2, -3)
# functions whose integers are axes, or numbers of heads and words
WITH_AXES = {
    *("softmax", "log_softmax", "sum", "mean", "cat", "stack", "transpose", "permute", "size"),
    *("unsqueeze", "squeeze", "argmax", "max", "cumsum", "flatten", "chunk", "split", "Softmax"),
}
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
    ast.Mod: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mod,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
# the mean of the words x (B, T, D), by a mask m (B, T) that is True on words, or on padding
MEANS = (
    "(x * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True)",
    "(x * ~m.unsqueeze(-1)).sum(1) / (~m).sum(1, keepdim=True)",
)
# scores x (B, T, T) or (B, H, T, T)
FILLED = (
    "x.masked_fill(~m.bool()[:, None], -1e9)",
    "x.masked_fill(m.bool()[:, None], -1e9)",
    "x.masked_fill(~m.bool()[:, None, None], -1e9)",
    "x.masked_fill(m.bool()[:, None, None], -1e9)",
    "x.masked_fill(~m.bool(), -1e9)",
    "x.masked_fill(m.bool(), -1e9)",
)
SCORES = re.compile("scor|weight|att|alpha|energ|sim|logit|poids|prob|^[aesw]$")
PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}


@dataclass
class Place:
    """Where a node is: in a field of another one, or in a list that is such a field."""

    holder: ast.AST
    name: str
    at: int | None
    statement: ast.stmt
    scope: "Scope"

    def get(self) -> ast.AST:
        value = getattr(self.holder, self.name)
        return value if self.at is None else value[self.at]

    def put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.holder, self.name, node)
        else:
            getattr(self.holder, self.name)[self.at] = node


@dataclass
class Scope:
    """A function, the names that it knows, and the attributes of its class by how they are made."""

    function: Function
    names: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)


class Edit:
    """A change of one statement.

    rank: 0 for what is most often meant. put: puts one of old and new in its place. after: what is
    there instead of the statement, "" for nothing; None for the changed statement.
    """

    def __init__(
        self, rank: int, statement: ast.stmt, put: Put, old: Any, new: Any, after: str | None = None
    ) -> None:
        self.rank, self.statement = rank, statement
        self.put, self.old, self.new, self.after = put, old, new, after

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The tree is changed within a with block."""
        self.put(self.new)
        try:
            yield
        finally:
            self.put(self.old)

    def texts(self) -> tuple[str, str]:
        """The first line of the statement before and after."""
        before = first_line(self.statement)
        with self.applied():
            after = first_line(self.statement) if self.after is None else self.after
            return before, after


def edits_of(definition: ast.stmt) -> Iterator[Edit]:
    """The changes of a function or a class."""
    for scope in scopes(definition):
        for place in places(scope):
            yield from of_expression(place)
        yield from of_statements(scope)


# --- where ----------------------------------------------------------------------------------------


def scopes(definition: ast.stmt) -> Iterator[Scope]:
    """The function, or the methods of the class, and the functions within them."""
    attributes = made_attributes(definition)
    for node in ast.walk(definition):
        if isinstance(node, Function):
            yield Scope(node, local_names(node), attributes)


def local_names(function: Function) -> list[str]:
    """The arguments without self, and the names that are assigned."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [argument.arg for argument in arguments if argument.arg != "self"]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return list(dict.fromkeys(names))


def made_attributes(definition: ast.stmt) -> dict[str, str]:
    """The attributes of self, with the name of the call that makes each."""
    made: dict[str, str] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if is_of_self(target):
                    call = node.value
                    name = ast.unparse(call.func) if isinstance(call, ast.Call) else "value"
                    made[target.attr] = name  # type: ignore[attr-defined]
    return made


def is_of_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def places(scope: Scope) -> Iterator[Place]:
    """Each expression of the function that is read, within its statement."""
    for statement in statements(scope.function.body):
        waiting: list[ast.AST] = [statement]
        while waiting:
            holder = waiting.pop(0)
            for name, value in ast.iter_fields(holder):
                if name in ("annotation", "returns", "type_comment", "ctx", "op", "ops"):
                    continue
                values = value if isinstance(value, list) else [value]
                for at, node in enumerate(values):
                    inner = isinstance(node, ast.keyword | ast.comprehension)
                    if isinstance(node, ast.expr):  # slices, too
                        yield Place(
                            holder, name, at if isinstance(value, list) else None, statement, scope
                        )
                    if isinstance(node, ast.expr) or inner:
                        waiting.append(node)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, and those within if, for and with; not those of inner functions."""
    for statement in body:
        yield statement
        if not isinstance(statement, Function | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, name, []))


# --- expressions ----------------------------------------------------------------------------------


def of_expression(place: Place) -> Iterator[Edit]:
    node = place.get()
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    for rank, kind in KINDS:
        for new in kind(place, node):
            yield replacing(rank, place, node, new)


def replacing(rank: int, place: Place, old: ast.AST, new: ast.expr) -> Edit:
    ast.fix_missing_locations(ast.copy_location(new, old))
    return Edit(rank, place.statement, place.put, old, new)


def first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).split("\n")[0]


def axis(place: Place, node: ast.AST) -> Expressions:
    """Another axis of softmax, sum, cat and others."""
    value = whole_number(node)
    if value is None:
        return
    holder = place.holder
    is_axis = isinstance(holder, ast.keyword) and holder.arg in ("dim", "axis", "dims")
    if isinstance(holder, ast.Call) and called_name(holder) in WITH_AXES:
        is_axis = True
    if is_axis or is_index_of_shape(place):
        yield from (ast.Constant(other) for other in AXES if other != value)


def whole_number(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else None
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_index_of_shape(place: Place) -> bool:
    holder = place.holder
    return (
        isinstance(holder, ast.Subscript)
        and place.name == "slice"
        and getattr(holder.value, "attr", "") == "shape"
    )


def index(place: Place, node: ast.AST) -> Expressions:
    """The last, the first or the second element instead of another one."""
    value = whole_number(node)
    if value is not None and isinstance(place.holder, ast.Subscript | ast.Tuple):
        yield from (ast.Constant(x) for x in (-1, 0, 1) if x != value)


def number(place: Place, node: ast.AST) -> Expressions:
    """A number that is one larger or smaller, or has the other sign."""
    value = whole_number(node)
    if value is not None:
        others = (value + 1, value - 1, -value)
        yield from (ast.Constant(x) for x in dict.fromkeys(others) if x != value)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        others_f = [-node.value, 10000.0, -1e9, 1e9, 0.5, 1.0]
        yield from (ast.Constant(x) for x in others_f if x != node.value)


def fill(place: Place, node: ast.AST) -> Expressions:
    """-1e9 for another fill of masked scores."""
    holder = place.holder
    is_fill = isinstance(holder, ast.Call) and called_name(holder) in ("masked_fill", "where")
    is_fill |= isinstance(holder, ast.Call) and called_name(holder) in ("masked_fill_", "full_like")
    is_value = isinstance(node, ast.Constant | ast.UnaryOp | ast.Call)
    if is_fill and place.name == "args" and is_value:
        yield ast.Constant(-1e9)
        yield ast.Constant(0.0)


def flag(place: Place, node: ast.AST) -> Expressions:
    """False for True."""
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)


def comparison(place: Place, node: ast.AST) -> Expressions:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARED.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [other()], node.comparators)


def negation(place: Place, node: ast.AST) -> Expressions:
    """Without ~, - or not; with ~ for a mask."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert | ast.USub | ast.Not):
        yield node.operand
    elif isinstance(node, ast.Compare) or is_mask(node):
        yield ast.UnaryOp(ast.Invert(), node)  # type: ignore[arg-type]


def is_mask(node: ast.AST) -> bool:
    """Whether a name in the expression says that it is a mask."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return False
    names = [getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node)]
    return any("mask" in name or "pad" in name for name in names)


def operator(place: Place, node: ast.AST) -> Expressions:
    if isinstance(node, ast.BinOp):
        for other in COMPUTED.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)


def copies(place: Place, node: ast.AST) -> Expressions:
    """Several modules instead of several times the same one: [f() for _ in range(n)] for [f()] * n."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, count in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.List) and len(one.elts) == 1:
                calls = ast.Call(ast.Name("range", ast.Load()), [count], [])
                loop = ast.comprehension(ast.Name("_", ast.Store()), calls, [], 0)
                yield ast.ListComp(one.elts[0], [loop])
    is_list = isinstance(node, ast.List | ast.ListComp) and isinstance(place.holder, ast.Assign)
    if is_list and is_of_self(place.holder.targets[0]):  # type: ignore[attr-defined]
        modules = ast.Attribute(ast.Name("nn", ast.Load()), "ModuleList", ast.Load())
        yield ast.Call(modules, [node], [])  # type: ignore[list-item]


def operand(place: Place, node: ast.AST) -> Expressions:
    """One side of a sum or of a product only."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right


def root(place: Place, node: ast.AST) -> Expressions:
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


def scale(place: Place, node: ast.AST) -> Expressions:
    """A product of queries and keys, divided by the root of their width."""
    first: ast.expr | None = None
    if isinstance(node, ast.Call) and called_name(node) in PRODUCTS:
        given = [x for x in node.args if not isinstance(x, ast.Constant)]
        if called_name(node) in ("matmul", "bmm") and isinstance(node.func, ast.Attribute):
            inside = node.func.value
            is_module = isinstance(inside, ast.Name) and inside.id in ("torch", "F")
            given = given if is_module else [inside, *given]
        first = given[0] if given else None
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        first = node.left
    if first is not None:
        width = ast.Subscript(
            ast.Attribute(first, "shape", ast.Load()), ast.Constant(-1), ast.Load()
        )
        yield ast.BinOp(node, ast.Div(), ast.BinOp(width, ast.Pow(), ast.Constant(0.5)))  # type: ignore[arg-type]


def without_call(place: Place, node: ast.AST) -> Expressions:
    """The argument instead of a function of it; the tensor instead of what its method returns."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and not is_package(node.func.value):
        if not is_of_self(node.func):
            yield node.func.value
    if node.args and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]


def is_package(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "F", "nn", "math", "np", "self")


def function(place: Place, node: ast.AST) -> Expressions:
    """Another function: softmax for sigmoid, tanh for relu, cos for sin, max for mean."""
    others = {
        "sigmoid": ("softmax",),
        "relu": ("tanh",),
        "tanh": ("relu",),
        "sin": ("cos",),
        "cos": ("sin",),
        "max": ("mean", "sum"),
        "mean": ("sum",),
        "sum": ("mean",),
        "log_softmax": ("softmax",),
        "argmin": ("argmax",),
        "zeros": ("ones",),
        "ones": ("zeros",),
        "zeros_like": ("ones_like",),
        "tril": ("triu",),
        "triu": ("tril",),
        "reshape": ("view",),
        "mul": ("add",),
        "repeat": ("repeat_interleave",),
        "repeat_interleave": ("repeat",),
        "expand": ("repeat",),
    }
    name = getattr(node, "attr", "")
    if name in others and isinstance(node, ast.Attribute) and place.name == "func":
        for other in others[name]:
            yield ast.Attribute(node.value, other, ast.Load())


def with_tanh(place: Place, node: ast.AST) -> Expressions:
    """tanh of a sum, the argument of a projection."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield of_torch("tanh", node)
    elif isinstance(place.holder, ast.Call) and is_of_self(place.holder.func):
        if isinstance(node, ast.Name | ast.Call):
            yield of_torch("tanh", node)


def of_torch(name: str, *given: ast.expr) -> ast.Call:
    parts = name.split(".")
    function: ast.expr = ast.Name("torch", ast.Load())
    for part in parts:
        function = ast.Attribute(function, part, ast.Load())
    return ast.Call(function, list(given), [])


def with_softmax(place: Place, node: ast.AST) -> Expressions:
    """softmax of what is assigned to a name of scores or weights."""
    statement = place.statement
    if isinstance(statement, ast.Assign) and place.holder is statement:
        names = " ".join(map(ast.unparse, statement.targets))
        if isinstance(node, ast.expr) and SCORES.search(names):
            yield of_torch("softmax", node, ast.Constant(-1))


def transposed(place: Place, node: ast.AST) -> Expressions:
    """Two axes exchanged; for a split into heads, after a view with the axes in the other order."""
    if not isinstance(node, ast.Call | ast.Name | ast.Attribute):
        return
    if isinstance(node, ast.Call) and called_name(node) in ("view", "reshape"):
        if len(node.args) == 4:
            a, b, c, d = node.args
            view = ast.Call(node.func, [a, c, b, d], [])
            yield method(view, "transpose", 1, 2)
        if isinstance(node.func, ast.Attribute):
            yield method(node.func.value, "transpose", 0, 1)
            yield method(node.func.value, "transpose", 1, 2)
            inner = method(node.func.value, "transpose", 1, 2)
            yield ast.Call(ast.Attribute(inner, "reshape", ast.Load()), node.args, node.keywords)
        yield method(node, "transpose", 1, 2)
    elif isinstance(place.holder, ast.BinOp | ast.Call | ast.Return | ast.Assign):
        if isinstance(node, ast.expr) and place.name != "func":
            yield method(node, "transpose", -2, -1)
            yield method(node, "transpose", 0, 1)


def method(node: ast.expr, name: str, *numbers: int) -> ast.Call:
    return ast.Call(
        ast.Attribute(node, name, ast.Load()), [ast.Constant(number) for number in numbers], []
    )


def exchanged(place: Place, node: ast.AST) -> Expressions:
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


def variable(place: Place, node: ast.AST) -> Expressions:
    """Another name of the function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if node.id in place.scope.names:
            for name in place.scope.names:
                if name != node.id:
                    yield ast.Name(name, ast.Load())


def attribute(place: Place, node: ast.AST) -> Expressions:
    """Another attribute that is made in the same way."""
    if isinstance(node, ast.Attribute) and is_of_self(node):
        made = place.scope.attributes
        for name, how in made.items():
            if name != node.attr and made.get(node.attr) == how:
                yield ast.Attribute(node.value, name, ast.Load())


def part_of(place: Place, node: ast.AST) -> Expressions:
    """The last, or first, layer or word; the whole instead of a part."""
    if isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.Name | ast.Call) and place.name != "func":
        for index in (-1, 0):
            if isinstance(node, ast.expr):
                yield ast.Subscript(node, ast.Constant(index), ast.Load())


def ends(place: Place, node: ast.AST) -> Expressions:
    """Another end of a slice: [:n] for [n:], [-n:] or [1:n]."""
    if not isinstance(node, ast.Slice):
        return
    for end in (node.lower, node.upper):
        if end is not None:
            plain = end.operand if isinstance(end, ast.UnaryOp) else end
            yield ast.Slice(None, plain)
            yield ast.Slice(plain, None)
    if node.step is not None:
        others = (0, 1) if whole_number(node.lower or ast.Constant(0)) == 1 else (1, 0)
        yield ast.Slice(ast.Constant(others[0]), node.upper, node.step)
    yield ast.Slice()


def masked(place: Place, node: ast.AST) -> Expressions:
    """The mean of the words only, and scores whose padding is filled with -1e9, by a mask of the
    function.
    """
    if not isinstance(node, ast.expr):
        return
    masks = [name for name in place.scope.names if "mask" in name or "pad" in name]
    is_mean = isinstance(node, ast.Call) and called_name(node) in ("mean", "sum", "max", "amax")
    if is_mean and isinstance(node.func, ast.Attribute) and not is_package(node.func.value):
        for mask, template in itertools.product(masks, MEANS):
            yield filled(template, x=node.func.value, m=ast.Name(mask, ast.Load()))
    holder = place.holder
    is_scores = isinstance(holder, ast.Call) and called_name(holder) in ("softmax", "Softmax")
    if is_scores and not is_package(node) and not isinstance(node, ast.Constant):
        base = node.value if place.name == "func" and isinstance(node, ast.Attribute) else node
        if is_package(base):
            return
        for mask, template in itertools.product(masks, FILLED):
            new = filled(template, x=base, m=ast.Name(mask, ast.Load()))
            is_method = base is not node and isinstance(node, ast.Attribute)
            yield ast.Attribute(new, node.attr, ast.Load()) if is_method else new  # type: ignore[attr-defined]


def filled(template: str, **values: ast.expr) -> ast.expr:
    """The expression of the template, with these expressions in the place of names."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return values.get(node.id, node)

    expression: ast.expr = Put().visit(ast.parse(template, mode="eval").body)
    return expression


def keyword(place: Place, node: ast.AST) -> Expressions:
    """Without one of the named arguments; dropout only in training."""
    if not isinstance(node, ast.Call):
        return
    for at in range(len(node.keywords)):
        rest = [*node.keywords[:at], *node.keywords[at + 1 :]]
        yield ast.Call(node.func, node.args, rest)
    if called_name(node) == "dropout":
        own = ast.Attribute(ast.Name("self", ast.Load()), "training", ast.Load())
        kept = [k for k in node.keywords if k.arg != "training"]
        yield ast.Call(node.func, node.args[:2], [*kept, ast.keyword("training", own)])


def indices(place: Place, node: ast.AST) -> Expressions:
    """Another letter in einsum."""
    holder = place.holder
    if not (isinstance(holder, ast.Call) and called_name(holder) == "einsum"):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        letters = sorted({c for c in text if c.isalpha()})
        for at, old in enumerate(text):
            if old.isalpha():
                for new in letters:
                    if new != old:
                        yield ast.Constant(text[:at] + new + text[at + 1 :])
        for first, second in itertools.combinations(letters, 2):
            head, arrow, tail = text.partition("->")
            swapped = tail.translate(str.maketrans(first + second, second + first))
            if arrow and swapped != tail:
                yield ast.Constant(head + arrow + swapped)


KINDS: tuple[tuple[int, Callable[[Place, ast.AST], Expressions]], ...] = (
    (0, axis),
    (0, negation),
    (0, comparison),
    (0, flag),
    (0, copies),
    (1, index),
    (1, root),
    (1, scale),
    (1, fill),
    (1, attribute),
    (1, function),
    (1, with_tanh),
    (1, ends),
    (2, masked),
    (2, variable),
    (2, operand),
    (2, operator),
    (2, without_call),
    (2, number),
    (2, exchanged),
    (3, transposed),
    (3, part_of),
    (3, keyword),
    (3, with_softmax),
    (4, indices),
)


# --- statements -----------------------------------------------------------------------------------


def of_statements(scope: Scope) -> Iterator[Edit]:
    for body in bodies(scope.function):
        for at, statement in enumerate(body):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.If):
                yield replacing_body(2, statement, body, without(body, at), "")
            if at + 1 < len(body):
                after = f"{first_line(body[at + 1])}, and then {first_line(statement)}"
                yield replacing_body(3, statement, body, swapped(body, at), after)
            following = body[at + 1 :]
            loops = [one for one in following if isinstance(one, ast.For | ast.While)]
            if isinstance(statement, ast.Assign) and loops:
                yield moving(1, statement, loops[0])


def bodies(function: Function) -> Iterator[list[ast.stmt]]:
    yield function.body
    for statement in statements(function.body):
        for name in ("body", "orelse"):
            inner = getattr(statement, name, [])
            if inner and not isinstance(statement, Function | ast.ClassDef):
                yield inner


def without(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], *body[at + 1 :]] or [
        ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    ]


def swapped(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], body[at + 1], body[at], *body[at + 2 :]]


def replacing_body(
    rank: int, statement: ast.stmt, body: list[ast.stmt], new: list[ast.stmt], after: str
) -> Edit:
    def put(statements: list[ast.stmt]) -> None:
        body[:] = statements

    return Edit(rank, statement, put, list(body), new, after)


def moving(rank: int, statement: ast.stmt, loop: ast.For | ast.While) -> Edit:
    """A copy of the statement is the first one of the loop."""
    after = f"{first_line(statement)}, again within {first_line(loop)}"
    new = [copy.deepcopy(statement), *loop.body]
    return replacing_body(rank, statement, loop.body, new, after)
