"""What may have been meant instead of a call in a student's code, or which call is missing.

Each function is given a place and the expression there, and yields other expressions.
"""

import ast
import itertools
import re

from imdbattn.tools.check.lines.places import (
    Place,
    called_name,
    is_of_self,
    of_self,
    says_mask,
    tensor_of,
    whole_number,
)
from imdbattn.tools.check.lines.values import Expressions

# the mean of the words x (B, T, D), by a mask m (B, T) that is True on words, or on padding
MEANS = (
    "(x * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True).clamp(min=1)",
    "(x * ~m.unsqueeze(-1)).sum(1) / (~m).sum(1, keepdim=True).clamp(min=1)",
)
COUNTS = ("m.sum(1, keepdim=True).clamp(min=1)", "(~m).sum(1, keepdim=True).clamp(min=1)")
KEYWORDS = {
    "batch_first": ("GRU", "LSTM", "RNN", "MultiheadAttention", "TransformerEncoderLayer"),
    "is_causal": ("scaled_dot_product_attention",),
}
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
TAKES_TENSORS = (ast.BinOp, ast.Call, ast.Return, ast.Assign)
# functions that are mistaken for each other
FUNCTIONS = {
    "sigmoid": ("softmax", "tanh"),
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
PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}


def copies(place: Place, node: ast.expr) -> Expressions:
    """[f() for _ in range(n)] instead of [f()] * n, and a ModuleList instead of a list."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, count in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.List) and len(one.elts) == 1:
                calls = ast.Call(ast.Name("range", ast.Load()), [count], [])
                loop = ast.comprehension(ast.Name("_", ast.Store()), calls, [], 0)
                yield ast.ListComp(one.elts[0], [loop])
    holder = place.holder
    is_kept = isinstance(holder, ast.Assign) and is_of_self(holder.targets[0])
    if is_kept and isinstance(node, ast.List | ast.ListComp):
        modules = ast.Attribute(ast.Name("nn", ast.Load()), "ModuleList", ast.Load())
        yield ast.Call(modules, [node], [])


def scale(place: Place, node: ast.expr) -> Expressions:
    """A product of queries and keys, divided by the root of their width."""
    first: ast.expr | None = None
    if isinstance(node, ast.Call) and called_name(node) in PRODUCTS:
        given = [x for x in node.args if not isinstance(x, ast.Constant)]
        tensor = tensor_of(node) if called_name(node) in ("matmul", "bmm") else None
        first = tensor or next(iter(given), None)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        first = node.left
    if first is not None:
        width = ast.Subscript(
            ast.Attribute(first, "shape", ast.Load()), ast.Constant(-1), ast.Load()
        )
        yield ast.BinOp(node, ast.Div(), ast.BinOp(width, ast.Pow(), ast.Constant(0.5)))


def without_call(place: Place, node: ast.expr) -> Expressions:
    """The argument instead of a function of it; the tensor instead of what its method returns."""
    if not isinstance(node, ast.Call):
        return
    if tensor := tensor_of(node):
        yield tensor
    if node.args and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]


def function(place: Place, node: ast.expr) -> Expressions:
    """Another function: softmax for sigmoid, tanh for relu, cos for sin, max for mean."""
    name = getattr(node, "attr", "")
    if name in FUNCTIONS and isinstance(node, ast.Attribute) and place.name == "func":
        for other in FUNCTIONS[name]:
            yield ast.Attribute(node.value, other, ast.Load())


def with_tanh(place: Place, node: ast.expr) -> Expressions:
    """tanh of a sum, the argument of a projection."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield of_torch("tanh", node)
        return
    holder = place.holder
    is_projected = isinstance(holder, ast.Call) and is_of_self(holder.func)
    if is_projected and isinstance(node, ast.Name | ast.Call):
        yield of_torch("tanh", node)


def of_torch(name: str, *given: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load()), [*given], [])


def with_softmax(place: Place, node: ast.expr) -> Expressions:
    """softmax of what is assigned to a name of scores or weights."""
    statement = place.statement
    if isinstance(statement, ast.Assign) and place.holder is statement:
        names = " ".join(map(ast.unparse, statement.targets))
        if SCORES.search(names):
            yield of_torch("softmax", node, ast.Constant(-1))


def heads(place: Place, node: ast.expr) -> Expressions:
    """A split into heads, or their concatenation, with the axes exchanged after or before view."""
    if not isinstance(node, ast.Call) or called_name(node) not in ("view", "reshape"):
        return
    if len(node.args) == 4:
        a, b, c, d = node.args
        yield method(ast.Call(node.func, [a, c, b, d], []), "transpose", 1, 2)
    if tensor := tensor_of(node):
        inner = method(tensor, "transpose", 1, 2)
        yield ast.Call(ast.Attribute(inner, "reshape", ast.Load()), node.args, node.keywords)
        yield method(tensor, "transpose", 0, 1)
        yield inner
    yield method(node, "transpose", 1, 2)


def repeated(place: Place, node: ast.expr) -> Expressions:
    """repeat_interleave along the axis that repeat makes longer, or along the first one."""
    if not isinstance(node, ast.Call) or called_name(node) != "repeat" or not node.args:
        return
    longer = [n for n, one in enumerate(node.args) if whole_number(one) != 1] or [0]
    if tensor := tensor_of(node):
        interleaved = ast.Attribute(tensor, "repeat_interleave", ast.Load())
        yield ast.Call(interleaved, [node.args[longer[0]], ast.Constant(longer[0])], [])


def transposed(place: Place, node: ast.expr) -> Expressions:
    """Two axes exchanged."""
    is_tensor = isinstance(node, ast.Call | ast.Name | ast.Attribute) and place.name != "func"
    if is_tensor and isinstance(place.holder, TAKES_TENSORS):
        yield method(node, "transpose", -2, -1)
        yield method(node, "transpose", 0, 1)


def method(node: ast.expr, name: str, *numbers: int) -> ast.Call:
    return ast.Call(
        ast.Attribute(node, name, ast.Load()), [ast.Constant(number) for number in numbers], []
    )


def module(place: Place, node: ast.expr) -> Expressions:
    """What a module that is not used returns for it."""
    if isinstance(place.holder, ast.Return | ast.Assign) and place.name == "value":
        for name in place.scope.unused:
            yield ast.Call(of_self(name), [node], [])


def mean_of_words(place: Place, node: ast.expr) -> Expressions:
    """The mean of the words only, by a mask of the function."""
    if isinstance(node, ast.Call) and called_name(node) in ("mean", "sum", "max", "amax"):
        tensor = tensor_of(node) or (node.args[0] if node.args else node)
        for mask, template in itertools.product(masks_of(place), MEANS):
            yield filled(template, x=tensor, m=mask)


def count_of_words(place: Place, node: ast.expr) -> Expressions:
    """The number of words, by a mask of the function, instead of another divisor."""
    holder = place.holder
    is_divisor = isinstance(holder, ast.BinOp) and isinstance(holder.op, ast.Div)
    if is_divisor and place.name == "right":
        for mask, template in itertools.product(masks_of(place), COUNTS):
            yield filled(template, m=mask)


def factor(place: Place, node: ast.expr) -> Expressions:
    """A sum of products instead of a sum."""
    if isinstance(node, ast.Call) and called_name(node) in ("sum", "mean"):
        tensor = tensor_of(node)
        if tensor and isinstance(node.func, ast.Attribute):
            for name in place.scope.names:
                product = ast.BinOp(tensor, ast.Mult(), ast.Name(name, ast.Load()))
                method = ast.Attribute(product, node.func.attr, ast.Load())
                yield ast.Call(method, node.args, node.keywords)


def masks_of(place: Place) -> list[ast.expr]:
    """The masks of the function, by their names."""
    return [ast.Name(name, ast.Load()) for name in filter(says_mask, place.scope.names)]


def masked_scores(place: Place, node: ast.expr) -> Expressions:
    """Softmax of scores whose padding is filled with -1e9, by a mask of the function."""
    if not isinstance(node, ast.Call) or called_name(node) != "softmax":
        return
    tensor = tensor_of(node)
    for mask, template in itertools.product(masks_of(place), FILLED):
        if tensor:
            scores = filled(template, x=tensor, m=mask)
            method = ast.Attribute(scores, "softmax", ast.Load())
            yield ast.Call(method, node.args, node.keywords)
        elif node.args:
            scores = filled(template, x=node.args[0], m=mask)
            yield ast.Call(node.func, [scores, *node.args[1:]], node.keywords)


def filled(template: str, **values: ast.expr) -> ast.expr:
    """The expression of the template, with these expressions in the place of names."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return values.get(node.id, node)

    expression: ast.expr = Put().visit(ast.parse(template, mode="eval").body)
    return expression


def in_training(place: Place, node: ast.expr) -> Expressions:
    """Dropout only in training."""
    training = of_self("training")
    holder = place.holder
    if isinstance(holder, ast.keyword) and holder.arg == "dropout_p":
        yield ast.IfExp(training, node, ast.Constant(0.0))
    if isinstance(node, ast.Call) and called_name(node) == "dropout":
        kept = [k for k in node.keywords if k.arg != "training"]
        yield ast.Call(node.func, node.args[:2], [*kept, ast.keyword("training", training)])


def with_keyword(place: Place, node: ast.expr) -> Expressions:
    """batch_first of recurrent layers and of attention, and is_causal."""
    if not isinstance(node, ast.Call):
        return
    given = [one.arg for one in node.keywords]
    name = called_name(node)
    for key, functions in KEYWORDS.items():
        if name in functions and key not in given:
            more = ast.keyword(key, ast.Constant(True))
            yield ast.Call(node.func, node.args, [*node.keywords, more])


def keyword(place: Place, node: ast.expr) -> Expressions:
    """Without one of the named arguments."""
    if not isinstance(node, ast.Call):
        return
    for at in range(len(node.keywords)):
        rest = [*node.keywords[:at], *node.keywords[at + 1 :]]
        yield ast.Call(node.func, node.args, rest)


def indices(place: Place, node: ast.expr) -> Expressions:
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
