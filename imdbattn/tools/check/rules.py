"""The rules that hold for every part.

These are: shape, same results, finite numbers, registered weights, gradients, unchanged inputs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.tools.check.numbers import (
    Mistake,
    NotChecked,
    StudentError,
    mistake,
    named,
    normal,
    same,
)
from imdbattn.tools.check.operations import require_known_in
from imdbattn.tools.check.part import (
    WIDTH,
    Part,
    call,
    cut,
    inputs,
    like_torch,
    net_of,
    nets,
    student,
    with_other_padding,
)

# of a tensor, to find slopes; rounding affects small ones, and a ReLU large ones
STEPS = (1e-3, 1e-6, 1e-5, 1e-4)


# Arguments that a caller does not need again: a change of them reaches no other result.
SPENT = {
    "masked_softmax": ("scores",),
    "PositionalEncoding": ("x",),
    "masked_mean": ("x",),
    "scaled_dot_product_attention": ("q",),
}

WITHOUT_WORDS = "The result, or a gradient, is nan for a review without words."


def require_shape(value: object, right: tuple[int, ...], text: str, part: Part) -> None:
    """Raises Mistake unless value is a tensor of floating-point numbers with this shape."""
    values = {"text": text, "signature": part.shown}
    if not isinstance(value, Tensor):
        raise mistake("not-a-tensor", type=type(value).__name__, **values)
    if tuple(value.shape) != right:
        raise mistake("wrong-shape", shape=tuple(value.shape), right=right, **values)
    if not value.is_floating_point() or (value.dtype != torch.float64 == torch.get_default_dtype()):
        raise mistake("wrong-dtype", dtype=value.dtype, **values)


def shape(part: Part) -> None:
    """The result has the documented shape, also for one review and for one word."""
    net = net_of(part)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        sizes = part.sizes | {"B": reviews, "T": length, "Q": length}
        right = tuple(sizes[letter] for letter in part.arguments[-1][1])
        given = inputs(part, *[length] * reviews)
        y = call(part, net, *given)
        try:
            require_shape(y, right, f"For {reviews} reviews of {length} words, the result", part)
        except Mistake:
            require_all_used(part, net, given, y)
            raise
    given = [x[1:] for x in inputs(part, 3, 2, 1)]
    right = tuple(
        (part.sizes | {"B": 2, "T": 3, "Q": 3})[letter] for letter in part.arguments[-1][1]
    )
    require_shape(
        call(part, net, *given),
        right,
        "For reviews of 2 words and 1 word with 3 positions, the result",
        part,
    )


def require_all_used(part: Part, net: Callable[..., Any], given: list[Tensor], y: Any) -> None:
    """Raises Mistake if an argument has no effect on a result of the wrong shape."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        return
    for place, (name, _) in enumerate(part.arguments[:-1]):
        if not given[place].is_floating_point():
            continue
        moved = [x + normal(*x.shape, seed=7) if x is given[place] else x for x in given]
        if not same(y, call(part, net, *moved), 1e-6):
            continue
        shown = part.name_of(name)
        example = mistake("argument-not-used", y, name=shown, fix="").args[2]
        if part.kind == "PositionalEncoding":
            sentence = "The positions are returned, not added to x."
            raise Mistake(
                "positions-not-added", sentence, example, part.change("positions-not-added")
            )
        if name == "v":
            sentence = "The values have no effect: something else is averaged, of another width."
            raise Mistake("keys-not-values", sentence, example, part.change("keys-not-values"))
        raise mistake("argument-not-used", y, name=shown, fix=part.change("argument-not-used"))


def repeatable(part: Part) -> None:
    """In evaluation mode the same input gives the same result twice."""
    net = net_of(part)
    first, _, again = (call(part, net, *inputs(part, 3, 2, seed=seed)) for seed in (0, 1, 0))
    if not same(again, first, 1e-5):
        made: list[str] = []
        hook = nn.modules.module.register_module_parameter_registration_hook(
            lambda module, name, _: made.append(f"{type(module).__name__}.{name}")
        )
        with hook:
            call(part, net, *inputs(part, 3, 2))
        finding = "made-in-forward" if made else "random-in-evaluation"
        raise mistake(finding, first, again, names=", ".join(made[:4]))


def unchanged(part: Part) -> None:
    """The input keeps its values."""
    lengths = (3, 1) if without_words_is_a_note(part) else (3, 0)
    given, net = inputs(part, *lengths), net_of(part)
    student(lambda: net(*given))
    for (name, _), before, after in zip(
        part.arguments, inputs(part, *lengths), given, strict=False
    ):
        if not torch.equal(before, after):
            if name in SPENT.get(part.kind, ()):
                require_own_arguments(part, net, name)
                reason = f"Its argument {part.name_of(name)} is changed in place"
                raise NotChecked(f"{reason}; a caller does not need it again.")
            raise mistake("changes-its-input", before, after, name=part.name_of(name))
    # a mask that the sheet computes for the call, such as ~mask
    for name, after, before in part.adapter.latest if part.adapter else ():
        is_given = any(after is x for x in given)
        if not is_given and after.dtype == torch.bool and not torch.equal(before, after):
            raise mistake("changes-its-input", before, after, name=name)


def require_own_arguments(part: Part, net: Any, name: str) -> None:
    """Raises Mistake if one tensor as queries, keys and values gives another result than copies of
    it, because the argument with this name is changed in place.
    """
    if part.kind != "scaled_dot_product_attention":
        return
    q, _, _, mask = inputs(part, 3, 3)
    copies = student(lambda: net(q.clone(), q.clone(), q.clone(), mask))
    one = student(lambda: net(q, q, q, mask))
    right, y = (x[0] if isinstance(x, tuple) else x for x in (copies, one))
    if not same(right, y):
        raise named("changes-its-input", "changes-all-three", right, y, name=part.name_of(name))


def padding(part: Part) -> None:
    """The values at padded positions have no effect on the results of the words."""
    net, given, result = net_of(part), inputs(part, 4, 2), part.arguments[-1][1]
    y = call(part, net, *given)
    z = call(part, net, *with_other_padding(part, given, inputs(part, 4, 2, seed=1), 2))
    if not same(cut(y[1:], result, 2), cut(z[1:], result, 2)):
        require_known_in(part, net)
        raise mistake("depends-on-padding", y[1], z[1], text="", length=2, more=2)


def numbers(part: Part) -> None:
    """The result of reviews without padding is finite."""
    y = call(part, net_of(part), *inputs(part, 3, 3))
    if not bool(y.isfinite().all()):
        raise mistake("nan-at-padding", y, text="", what="result", name="the result")


def batch(part: Part) -> None:
    """A review gives the same result alone, with padding, and in a batch with other reviews."""
    *dimensions, (_, result) = part.arguments
    for text, net in nets(part):
        if part.kind != "Classifier" and isinstance(net, nn.Module):
            for name, module in net.named_modules():
                if isinstance(module, nn.BatchNorm1d):
                    raise mistake("batch-norm", name=name)
        lengths = part.lengths(4, 2, 1, 3)
        given = inputs(part, *lengths)
        together = call(part, net, *given)
        for row, length in enumerate(lengths):
            one = [x[row : row + 1] for x in given]
            alone = call(
                part,
                net,
                *(cut(x, letters, length) for x, (_, letters) in zip(one, dimensions, strict=True)),
            )
            values = {"text": text, "length": length, "more": 4 - length}
            if not same(padded := cut(call(part, net, *one), result, length), alone, 2e-3):
                other = call(part, net, *inputs(part, length, seed=1)) if length > 1 else padded
                if bool(padded.isfinite().all()) and (
                    bool(alone.isnan().all()) or same(other, alone, 1e-5)
                ):
                    raise named("mask-inverted", "only-padding-read", alone, padded, **values)
                require_known_in(part, net)
                raise mistake("depends-on-padding", alone, padded, **values)
            if not same(other := cut(together[row : row + 1], result, length), alone, 2e-3):
                require_known_in(part, net)
                raise mistake("depends-on-batch", alone, other, **values)


def trained(part: Part, net: nn.Module, *given: Tensor) -> set[str]:
    """Names of the parameters that receive a gradient other than 0 from the squares of the
    result.
    """
    if (y := call(part, net, *given)).requires_grad:
        student(lambda: y.square().sum().backward())
    return {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}


def finite(part: Part) -> None:
    """Padding, and a review without words, have finite results and gradients."""
    for finding, lengths in (("nan-at-padding", (1, 2)), ("nan-without-words", (0, 2))):
        for text, net in nets(part):
            if 0 in lengths and like_torch(part, net):
                return  # torch's own gives NaN for it
            given = [
                x.requires_grad_() if x.is_floating_point() else x for x in inputs(part, *lengths)
            ]
            try:
                y = call(part, net, *given)
            except StudentError as error:
                if 0 in lengths and without_words_is_a_note(part):
                    reason = type(error.args[0]).__name__
                    raise NotChecked(f"A review without words raises {reason}.") from error
                raise
            if y.requires_grad and bool(y.isfinite().all()):
                student(lambda y=y: y.square().sum().backward())
            arguments = zip(part.arguments, given, strict=False)
            tensors = [(part.name_of(name), x) for (name, _), x in arguments]
            tensors += net.named_parameters() if isinstance(net, nn.Module) else []
            gradients = [
                ("gradient", f"the gradient of {name}", x.grad)
                for name, x in tensors
                if x.grad is not None
            ]
            for what, name, values in [("result", "the result", y), *gradients]:
                if not bool(values.isfinite().all()):
                    if 0 in lengths and only_without_words(part, what, values):
                        raise NotChecked(WITHOUT_WORDS)
                    raise mistake(
                        finding, values[~values.isfinite()], text=text, what=what, name=name
                    )


def only_without_words(part: Part, what: str, values: Tensor) -> bool:
    """Whether it is a note for the part that these values of a review without words, the first one,
    are not finite. Other reviews must have finite results.
    """
    is_note = without_words_is_a_note(part)
    return is_note and (what != "result" or bool(values[1:].isfinite().all()))


def without_words_is_a_note(part: Part) -> bool:
    """Whether it is not wrong if a review without words has no finite result."""
    called = getattr(part.make, "forward", part.make)
    return part.adapter is not None and part.adapter.entry.may_be_nan(called)


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
    *_, (_, net) = nets(part)
    require_no_lists(net)
    if part.kind in ("Classifier", "Model"):  # its vectors and positions are no weights
        return
    second = net_of(part, seed=1)
    given, others = inputs(part, 3, 2), dict(second.named_buffers())
    before = call(part, net, *given)
    # Buffers that do not depend on the seed, such as positions or an identity, are constants.
    constants = [
        id(x) for name, x in net.named_buffers() if name in others and others[name].equal(x)
    ]
    for child, twin in zip(net.modules(), second.modules(), strict=False):
        for key, value in vars(child).items():
            other = vars(twin).get(key)
            if isinstance(value, Tensor) and isinstance(other, Tensor) and value.equal(other):
                constants.append(id(value))
    ours = [child for child in net.modules() if not type(child).__module__.startswith("torch.")]
    for key, value in [
        one for c in ours for one in (*vars(c).items(), *c.named_buffers(recurse=False))
    ]:
        if not isinstance(value, Tensor) or id(value) in constants:
            continue
        if value.is_floating_point() and value.numel() >= WIDTH:
            value.data += 1  # a result that is only stored has no effect
            if not same(after := call(part, net, *given), before, 1e-5):
                raise mistake("not-registered", before, after, key=key, shape=tuple(value.shape))


def gradients(part: Part) -> None:
    """Every parameter receives a gradient."""
    made = [net for _, net in nets(part)]
    # CLS is unused without it
    used = set().union(*(trained(part, net, *inputs(part, 3, 3, 3, 3)) for net in made))
    unused = [(k, p) for k, p in made[0].named_parameters() if p.requires_grad and k not in used]
    # the gradient of a bias may be 0
    without = [k for k, p in unused if p.grad is None or p.ndim > 1]
    if without:
        names = ", ".join(without[:4]) + ", ..." * (len(without) > 4)
        if not isinstance(made[0], torch.jit.ScriptModule):  # whose modules have no hooks
            require_called(made[0], without, lambda: call(part, made[0], *inputs(part, 3, 3)))
        require_attention(part, made[0])
        raise mistake("no-gradient", count=len(without), names=names)


def require_called(net: nn.Module, unused: list[str], run: Callable[[], object]) -> None:
    """Raises Mistake if the parameters that are not used are those of a module that is not called,
    or whose result has no effect.

    unused: their names. run: calls the module.
    """
    calls: dict[nn.Module, int] = {}

    def count(module: nn.Module, given: object, y: object) -> None:
        calls[module] = calls.get(module, 0) + 1

    with nn.modules.module.register_module_forward_hook(count):
        run()
    name = unused[0].rpartition(".")[0]
    if not name:
        return
    while "." in name and is_unused(net, name.rpartition(".")[0], unused):
        name = name.rpartition(".")[0]
    module = net.get_submodule(name)
    values = {"unused": name, "names": ", ".join(unused[:4])}
    if module in calls:
        if is_unused(net, name, unused):
            raise mistake("result-not-used", **values)
        return
    shape = next(iter(module.parameters())).shape
    for used, other in net.named_modules():
        is_like = type(other) is type(module) and next(iter(other.parameters())).shape == shape
        if is_like and calls.get(other, 0) > 1:
            values |= {"used": used, "count": str(calls[other])}
            raise named("shared-projections", "module-instead-of-another", **values)
    if is_a_function(module):
        return
    raise mistake("module-not-called", **values)


def is_unused(net: nn.Module, name: str, unused: list[str]) -> bool:
    """Whether all matrices of the module with this name are among the parameters not used. Lists
    are no modules that could be called.
    """
    module = net.get_submodule(name)
    parameters = module.named_parameters()
    return not isinstance(module, nn.ModuleList | nn.ModuleDict) and all(
        f"{name}.{k}" in unused for k, p in parameters if p.requires_grad and p.ndim > 1
    )


def require_attention(part: Part, net: nn.Module) -> None:
    """Raises Mistake if the words of a review have no effect on each other."""
    if part.arguments[0][0] != "x" or part.arguments[-1][1][:2] != ["B", "T"]:
        return
    given = inputs(part, 3, 3)
    moved = given[0].clone()
    moved[:, -1] += normal(moved.shape[-1], seed=7)
    y, z = (call(part, net, x, *given[1:]) for x in (given[0], moved))
    if same(y[:, 0], z[:, 0], 1e-6):
        raise mistake("words-do-not-attend", y[0, 0])


def is_a_function(module: nn.Module) -> bool:
    """Whether its parameters may be used without a call of it: torch's own attention does it."""
    return isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)


def slopes(part: Part) -> None:
    """Gradients are the slopes of the result: no step cuts them."""
    for text, net in nets(part):
        given = inputs(part, 3, 3)
        arguments = zip(part.arguments, given, strict=False)
        moved: list[Any] = [(part.name_of(name), x) for (name, _), x in arguments]
        moved = [(name, [x.requires_grad_()]) for name, x in moved if x.is_floating_point()]
        own = []
        if isinstance(net, nn.Module):
            own = [(k, [p]) for k, p in net.named_parameters() if p.requires_grad]
        if part.kind in ("Classifier", "Model"):  # one by one would take long
            own = [("all parameters", [p for _, (p,) in own])]
        y = call(part, net, *given)
        weights = normal(*y.shape, seed=1)
        total = (y * weights).sum()
        for name, group in [*moved, *own]:
            directions = [
                normal(x.numel(), seed=place).view(x.shape) for place, x in enumerate(group)
            ]
            found = torch.zeros(())
            if y.requires_grad:
                gradients = torch.autograd.grad(total, group, retain_graph=True, allow_unused=True)
                found = sum(
                    (
                        (g * d).sum()
                        for g, d in zip(gradients, directions, strict=True)
                        if g is not None
                    ),
                    found,
                )
            for step in STEPS:
                results = []
                for move in (step, -2 * step):
                    shift(group, directions, move)
                    results.append((call(part, net, *given).detach() * weights).sum())
                shift(group, directions, step)  # as before
                slope = (results[0] - results[1]) / (2 * step)
                if (slope - found).abs() <= 0.02 * max(
                    slope.abs(), found.abs()
                ) + 1e-4 * total.abs():
                    break
            else:
                raise mistake("gradient-cut", found, slope, text=text, name=name)


def shift(tensors: list[Tensor], directions: list[Tensor], step: float) -> None:
    for x, direction in zip(tensors, directions, strict=True):
        x.data += step * direction
