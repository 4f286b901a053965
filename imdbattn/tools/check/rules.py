"""The rules for all kinds of parts: shape, repeatable and finite results, an unchanged input,
padding and other reviews without an effect, registered weights, and gradients.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from imdbattn.tools.check.findings import NotChecked, StudentError, mistake
from imdbattn.tools.check.numbers import same
from imdbattn.tools.check.part import WIDTH, Part, Rule, call_student

WITHOUT_WORDS = "The result, or a gradient, is nan for a review without words."


def require_shape(value: object, right: tuple[int, ...], text: str, part: Part) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    values = {"text": text, "signature": part.entry.signature}
    if not isinstance(value, Tensor):
        raise mistake("not-a-tensor", type=type(value).__name__, **values)
    if tuple(value.shape) != right:
        raise mistake("wrong-shape", shape=tuple(value.shape), right=right, **values)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        raise mistake("wrong-dtype", dtype=value.dtype, **values)


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net = part.net()
    cases = [(len(n), n[0], part.inputs(*n)) for n in ((3, 3), (3,), (1, 1), (1,))]
    cases.append((2, 3, [x[1:] for x in part.inputs(3, 2, 1)]))  # each review has padding
    for reviews, positions, arguments in cases:
        sizes = part.sizes | {"B": reviews, "T": positions, "Q": positions}
        text = f"For {reviews} reviews of {positions} positions, the result"
        right = tuple(sizes[letter] for letter in part.kind.returned)
        require_shape(part.call(net, *arguments), right, text, part)


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = part.net()
    first, _, again = (part.call(net, *part.inputs(*(3, 2) * 8, seed=s)) for s in (0, 1, 0))
    if not same(again, first, 1e-5):
        if isinstance(net, nn.Module):
            require_no_lists(net)  # eval() does not turn off their dropout
        raise mistake("random-in-evaluation", first, again)


def input_unchanged(part: Part) -> None:
    """The input keeps its values."""
    lengths = (3, 0 if part.entry.uses_project_signature else 1)
    before, arguments, net = part.inputs(*lengths), part.inputs(*lengths), part.net()
    call_student(lambda: net(*arguments))
    for name, old, new in zip(part.kind.arguments, before, arguments, strict=True):
        if not torch.equal(old, new):
            may_be_overwritten = part.kind.may_overwrite_first or not part.kind.is_module
            if not may_be_overwritten or new is not arguments[0]:
                raise mistake("changes-its-input", old, new, name=name)
            reason = f"Its argument {name} is changed in place"
            raise NotChecked(f"{reason}; a caller does not need it again.")


def cut(value: Tensor, dimensions: list[str], length: int) -> Tensor:
    return value.narrow(dimensions.index("T"), 0, length) if "T" in dimensions else value


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    dimensions, result = part.kind.arguments.values(), part.kind.returned
    for text, net in part.nets():
        lengths = part.lengths(4, 2, 1, 3)
        arguments = part.inputs(*lengths)
        together = part.call(net, *arguments)
        for row, length in enumerate(lengths):
            review = [x[row : row + 1] for x in arguments]
            words = [cut(x, letters, length) for x, letters in zip(review, dimensions, strict=True)]
            alone = part.call(net, *words)
            values = {"text": text, "length": length, "more": 4 - length}
            padded = cut(part.call(net, *review), result, length)
            if not same(padded, alone, 2e-3):
                raise mistake("depends-on-padding", alone, padded, **values)
            other = cut(together[row : row + 1], result, length)
            if not same(other, alone, 2e-3):
                raise mistake("depends-on-batch", alone, other, **values)


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for finding, lengths in (("nan-at-padding", (1, 2)), ("nan-without-words", (0, 2))):
        may_be_nan = 0 in lengths and not part.entry.uses_project_signature
        for text, net in part.nets():
            arguments = part.inputs(*lengths)
            for x in arguments:
                x.requires_grad_(x.is_floating_point())
            try:
                y = part.call(net, *arguments)
            except StudentError as error:
                if may_be_nan:
                    reason = type(error.args[0]).__name__
                    raise NotChecked(f"A review without words raises {reason}.") from error
                raise
            if y.requires_grad and bool(y.isfinite().all()):
                call_student(lambda y=y: y.square().sum().backward())
            tensors = list(zip(part.kind.arguments, arguments, strict=True))
            tensors += net.named_parameters() if isinstance(net, nn.Module) else []
            grads = [(f"the gradient of {name}", x.grad) for name, x in tensors]
            for name, values in [("the result", y), *grads]:
                if values is not None and not bool(values.isfinite().all()):
                    if may_be_nan and (values is not y or bool(y[1:].isfinite().all())):
                        raise NotChecked(WITHOUT_WORDS)
                    wrong = values[~values.isfinite()]
                    raise mistake(finding, wrong, text=text, name=name)


def require_no_lists(net: nn.Module) -> None:
    """Raises Mistake if modules are kept in a list, or the like, of Python."""
    known = set(net.modules())
    for child in known:
        for key, value in vars(child).items():
            if key not in vars(nn.Module()) and isinstance(value, list | tuple | dict):
                inside = value.values() if isinstance(value, dict) else value
                hidden = [v for v in inside if isinstance(v, nn.Module) and v not in known]
                if count := sum(p.numel() for module in hidden for p in module.parameters()):
                    others = sum(p.numel() for p in net.parameters())
                    values = {"type": type(value).__name__, "key": key, "count": len(hidden)}
                    raise mistake("layers-in-a-list", hidden=count, others=others, **values)


def registered(part: Part) -> None:
    """Every layer and every weight is registered."""
    *_, (_, net) = part.nets()
    require_no_lists(net)
    if not part.kind.is_model:  # whose vectors and positions are not weights
        require_parameters(net, part.net(seed=1), lambda: part.call(net, *part.inputs(3, 2)))


def require_parameters(net: nn.Module, second: nn.Module, run: Callable[[], Tensor]) -> None:
    """Raises Mistake if a tensor that has an effect on the result is random, and no parameter.

    second: the module made with another seed; what is the same in both, such as positions or an
    identity, is a constant. run: calls the module.
    """
    before = run()
    for child, twin in zip(net.modules(), second.modules(), strict=False):
        if type(child).__module__.startswith("torch."):
            continue
        own = vars(child) | dict(child.named_buffers(recurse=False))
        others = vars(twin) | dict(twin.named_buffers(recurse=False))
        for key, value in own.items():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            is_constant = isinstance(others.get(key), Tensor) and value.equal(others[key])
            if value.numel() >= WIDTH and not is_constant:
                value.data += 1  # a result that is only stored has no effect
                if not same(after := run(), before, 1e-5):
                    shape = tuple(value.shape)
                    raise mistake("not-registered", before, after, key=key, shape=shape)


def gradients(part: Part) -> None:
    """Every parameter receives a gradient."""
    made = [net for _, net in part.nets()]
    used: set[str] = set()  # with any options: CLS is unused without its option
    for net in made:
        if (y := part.call(net, *part.inputs(3, 3, 3, 3))).requires_grad:
            call_student(lambda y=y: y.square().sum().backward())
        used |= {k for k, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}
    left = [(k, p) for k, p in made[0].named_parameters() if p.requires_grad and k not in used]
    # The gradient of a bias may be 0.
    if without := [k for k, p in left if p.grad is None or p.ndim > 1]:
        names = ", ".join(without[:4]) + ", ..." * (len(without) > 4)
        raise mistake("no-gradient", count=len(without), names=names)


FIRST = [
    Rule("shape", shape),
    Rule("repeatable", repeatable),
    Rule("input-unchanged", input_unchanged),
]
REGISTERED = Rule("registered", registered, ("repeatable", "input-unchanged"))
