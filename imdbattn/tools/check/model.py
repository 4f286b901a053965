"""Models: vectors -> + positions -> layers -> the mean of the words, or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

import imdbattn.tools.check.rules as rules
from imdbattn.nn import sinusoids
from imdbattn.tools.check.findings import NotChecked, mistake
from imdbattn.tools.check.formulas import Binding, Comparison, Names
from imdbattn.tools.check.numbers import mask, same
from imdbattn.tools.check.part import (
    VECTORS,
    VOCABULARY,
    Kind,
    Part,
    Rule,
    call_student,
    vectors_VD,
)
from imdbattn.tools.check.sheets import parameters_of
from imdbattn.tools.check.tables import TABLES
from imdbattn.tools.check.watching import module_calls, record

SEEDS = range(3)  # a function that changes the logits of none of these models has no effect
NO_EFFECT = 1e-5  # a smaller effect is none
ONE_REVIEW = [[4, 2, 9]]
TWO_REVIEWS = [[4, 2, 9, 1], [3, 8, 1, 6]]


def batch_of(tokens: Any) -> tuple[Tensor, Tensor]:
    """Returns the arguments of a model for reviews of equal lengths."""
    tokens_BT = torch.as_tensor(tokens)
    return tokens_BT, torch.full(tokens_BT.shape[:1], tokens_BT.shape[1])


def logits(part: Part, tokens: Any, table: Tensor | None = None, **options: Any) -> Tensor:
    """Returns the detached logits (B, C). table, options: as in Part.net."""
    return call_student(part.net(table, **options), *batch_of(tokens)).detach()


def shaped(tensors: list[Tensor], *shape: int) -> list[Tensor]:
    return [x for x in tensors if x.shape == shape]


def difference(
    part: Part, table: str, result: Tensor, text: str, names: list[Names]
) -> Exception | None:
    """Returns None if the formula gives the result with some of the names, else the exception that
    says that it does not. Raises Mistake for a known mistake, and Differs for a known difference
    that is defensible.
    """
    bindings = [Binding(lambda values=values: values) for values in names]
    comparison = Comparison(part.name, part.change, TABLES[table], {text: ()}, [result], bindings)
    if comparison.is_right():
        return None
    finding = comparison.finding()
    if comparison.known:
        raise finding
    return finding


def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax or another function after the last Linear."""
    for seed in SEEDS:
        reviews = [[first, second] for first in range(4) for second in (5, 8)]
        made = record(part, part.net(seed=seed), *batch_of(reviews))
        *earlier, y_BC = shaped(made, 8, part.sizes["C"])
        if linears := [{"z": z} for z in earlier if not same(z, y_BC)]:
            difference(part, "logits", y_BC, "8 reviews", linears)


def layers(part: Part) -> None:
    """Each layer is used once."""
    net = part.net()
    made = module_calls(part, net, *part.inputs(3))
    called = [module for module, _, results in made if results and results[0].ndim == 3]
    for name, module in net.named_modules():  # a layer comes before its parts
        count = called.count(module)
        if count > 1 and any(p.ndim > 1 and p.requires_grad for p in module.parameters()):
            raise mistake("one-layer-shared", name=name, count=count)


# --- what the head reads --------------------------------------------------------------------------


def read_positions(part: Part, length: int, **options: Any) -> list[int]:
    """Returns the positions of the last layer's result that have an effect on the logits; [] if no
    module returns such a result, (B, T, D).
    """
    last: list[Tensor] = []

    def keep(module: nn.Module, arguments: object, y: object) -> Any:
        if not isinstance(y, Tensor) or y.ndim != 3 or y.shape[:2] != (2, length):
            return None
        last[:] = [y.detach().requires_grad_()]
        return last[0] * 1  # the copy may be changed in place

    with nn.modules.module.register_module_forward_hook(keep):
        y_BC = call_student(part.net(**options), *part.inputs(4, 4))
    call_student(lambda: y_BC.square().sum().backward())
    grads = [y_BTD.grad for y_BTD in last if y_BTD.grad is not None]
    return [n for grad_BTD in grads for n in range(length) if bool(grad_BTD[:, n].any())]


def cls_vector(part: Part, net: nn.Module) -> Tensor | None:
    """Returns the vector (D,) that is before the words of all reviews; None if there is none."""
    made = record(part, net, *batch_of(TWO_REVIEWS))
    longer = [x for x in made if x.ndim == 3 and x.shape[:2] == (2, 5)]
    found = (x for x in longer if same(x[0, 0], x[1, 0]) and not same(x[0, 1:], x[1, 1:]))
    return next((x[0, 0] for x in found), None)


def mean_or_cls(part: Part) -> None:
    """The head reads the mean of the words, or a CLS vector that is trained."""
    net = part.net()
    if (cls_D := cls_vector(part, net)) is not None:
        require_cls(part, cls_D)
        return
    n_B = torch.tensor([4, 2])
    made = record(part, net, torch.tensor(TWO_REVIEWS), n_B)
    w_BT1 = mask(4, 2)[..., None].to(torch.get_default_dtype())
    names = [{"y": y, "w": w_BT1, "n": n_B} for y in reversed(shaped(made, 2, 4, VECTORS))]
    pooled = shaped(made, 2, VECTORS)[-1:]
    text = "the last Linear and 2 reviews of 4 and 2 words"
    table = "mean" if part.entry.uses_project_signature else "mean_of_model"
    if not pooled or not names or difference(part, table, pooled[0], text, names):
        raise NotChecked("The head's input was not compared: it is not a result (B, D) of words.")


def cls(part: Part) -> None:
    """The head reads a CLS vector before the words, which is trained."""
    if (cls_D := cls_vector(part, part.net(cls=True))) is None:
        raise mistake("cls-not-first", logits(part, ONE_REVIEW, cls=True))
    require_cls(part, cls_D, cls=True)
    order(part, cls=True)


def require_cls(part: Part, cls_D: Tensor, **options: Any) -> None:
    """Raises Mistake if the vector before the words depends on no parameter that is trained, or if
    the head reads another position.
    """
    net = part.net(**options)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.5
    other_D = cls_vector(part, net)
    if other_D is not None and same(other_D, cls_D):
        raise mistake("cls-not-trained", count=sum(p.requires_grad for p in net.parameters()))
    y, z = (logits(part, [[4, 2, last]], **options) for last in (9, 8))
    if same(y, z, NO_EFFECT):
        raise mistake("last-word-not-used", y)
    if (read := read_positions(part, 5, **options)) not in ([0], []):
        raise mistake("cls-read-elsewhere", places=", ".join(map(str, read)))


# --- the model of --stub --------------------------------------------------------------------------


def frozen_vectors(part: Part) -> None:
    """The vectors are not trained."""
    for name, parameter in part.net().named_parameters():
        if parameter.requires_grad and tuple(parameter.shape) == (VOCABULARY, VECTORS):
            raise mistake("vectors-trained", name=name, shape=tuple(parameter.shape))


def ids(part: Part) -> None:
    """Every id is a word: only the lengths determine what is padding."""
    tokens_BT = torch.tensor([[0, 5, VOCABULARY - 1, 9], [2, 1, 3, 4]])
    before, other = (logits(part, tokens_BT, table=x) for x in (vectors_VD(), vectors_VD().flip(0)))
    if same(before, other, NO_EFFECT):
        raise mistake("vectors-not-used", before)
    after = logits(part, (tokens_BT + 6) % VOCABULARY, table=vectors_VD().roll(6, 0))
    if not same(before, after):
        raise mistake("word-as-padding", before, after)


def order(part: Part, **options: Any) -> None:
    """Without positions, the order of the words has no effect."""
    y, z = (logits(part, review, **options) for review in (ONE_REVIEW, [ONE_REVIEW[0][::-1]]))
    if not same(y, z, 1e-4):
        raise mistake("depends-on-order", y, z)


def positions(part: Part) -> None:
    """The model with positions gives the results of one without them for vectors to which positions
    are added.
    """
    tokens_BT = torch.arange(3, 15).view(3, 4)
    y_BC, table_VD = logits(part, tokens_BT, positions="sinusoidal"), vectors_VD()

    def without(x_BTD: Tensor) -> Tensor:
        changed_VD = table_VD.clone()
        changed_VD[tokens_BT] = x_BTD
        return logits(part, tokens_BT, table=changed_VD)

    names = {"v": table_VD[tokens_BT], "T": 4, "logits": without}
    encodings = [sinusoids, *filter(None, [part.namespace.get("positional_encoding")])]
    encoded = [names | {"pe": encode(8, VECTORS).to(table_VD.dtype)} for encode in encodings]
    if found := difference(part, "positions", y_BC, "3 reviews of 4 words", encoded):
        raise found


# --- models under any name ------------------------------------------------------------------------


def added_positions(part: Part) -> None:
    """The positions are added once, and each word is given those of its place."""
    net, arguments = part.net(), part.inputs(4, 4, 4)
    named_so = [m for m in net.modules() if "pos" in type(m).__name__.lower()]
    seen = [
        results[0] - x[0]
        for module, x, results in module_calls(part, net, *arguments)
        if module in named_so and x and len(results) == 1 and results[0].shape == x[0].shape
    ]
    may_be_without = any(re.search("pos|pe(_|$)", k) for k in parameters_of(part.definition))
    if named_so and not seen and not may_be_without:
        raise mistake("positions-not-used", name=type(named_so[0]).__name__)
    if len(seen) > 1:
        raise mistake("positions-added-often", count=len(seen))
    if not seen:
        raise NotChecked("Positions were not checked: no module adds them.")

    def rolled(module: nn.Module, arguments: object, y: object) -> Any:
        return y.roll(1, -1) if module in named_so and isinstance(y, Tensor) else None

    before = part.call(net, *arguments)
    with nn.modules.module.register_module_forward_hook(rolled):
        if same(part.call(net, *arguments), before, NO_EFFECT):
            raise mistake("positions-not-used", name=type(named_so[0]).__name__)
    pe_BTD = seen[0] if len(seen[0]) == 3 else seen[0].transpose(0, 1)
    of_reviews = same(pe_BTD[:1].expand_as(pe_BTD), pe_BTD)
    if same(pe_BTD[:, :1].expand_as(pe_BTD), pe_BTD) and not of_reviews:
        raise mistake("positions-of-reviews", pe_BTD[0, 0], pe_BTD[1, 0])


class ClassifierKind(Kind):
    """The model of --stub, which is given vectors, positions and cls."""

    is_model = True
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"positions": "sinusoidal"},
        {"cls": True},
        {"positions": "sinusoidal", "cls": True},
    )

    def rules(self) -> list[Rule]:
        before_gradients = ("logits", "repeatable", "layers", "registered", "mean")
        return [
            *rules.FIRST,
            Rule("logits", returns_logits, ("repeatable",)),
            Rule("frozen-vectors", frozen_vectors),
            Rule("ids", ids, ("repeatable", "frozen-vectors")),
            Rule("mean", mean_or_cls, ("ids", "repeatable")),
            Rule("order", order, ("ids", "repeatable", "mean")),
            Rule("layers", layers),
            Rule("registered", rules.registered),
            Rule("gradients", rules.gradients, before_gradients),
            Rule("positions", positions, ("repeatable", "order", "gradients"), option="positions"),
            Rule("cls", cls, ("repeatable", "order", "gradients"), option="cls"),
            Rule("batch", rules.batch, ("ids", "repeatable", "mean", "order", "positions", "cls")),
            Rule("finite", rules.finite, ("batch", "input-unchanged")),
        ]


class ModelKind(Kind):
    """A model under any name."""

    is_model = True
    also_called = ("Classifier", "model")

    def rules(self) -> list[Rule]:
        return [
            *rules.FIRST,
            Rule("logits", returns_logits, ("repeatable",)),
            Rule("mean", mean_or_cls, ("repeatable",)),
            Rule("layers", layers),
            Rule("positions", added_positions, ("repeatable",)),
            Rule("batch", rules.batch, ("repeatable", "logits", "mean", "positions")),
            Rule("registered", rules.registered),
            Rule("gradients", rules.gradients, ("logits", "layers", "registered", "mean", "batch")),
            Rule("finite", rules.finite, ("batch", "input-unchanged")),
        ]
