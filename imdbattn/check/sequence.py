"""Rules of modules that are called with (x_BTD, mask_BT) and keep the shape, and tests that other parts share.

Shape suffixes: B reviews, T positions, D width. A suffix 1 is a dimension of size 1.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from imdbattn.check.rules import Mistake, Part, Rules, build, normal, require_shape, same, show

WIDTH = 6
SOFTMAX_FIX = "A softmax over keys that are all -inf is NaN: let such a row give 0, and divide by at least 1."


def words(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, WIDTH, seed=seed)


def mask(*lengths: int, size: int | None = None) -> Tensor:
    """(B, T) bool, True on the words."""
    return torch.arange(size or max(lengths)) < torch.tensor(lengths)[:, None]


def add_basics(rules: Rules) -> None:
    @rules.add("shape")
    def shape(part: Part) -> None:
        """(B, T, D) in, (B, T, D) out."""
        module = build(part.make, WIDTH)
        for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
            y_BTD = module(words(reviews, length), mask(*[length] * reviews))
            call = f"For x of shape ({reviews}, {length}, {WIDTH}), the result"
            require_shape(y_BTD, (reviews, length, WIDTH), call, f"{part.signature} keeps the shape.")
        if not list(module.parameters()):
            sentence = "The module has no parameters, so nothing in it is trained."
            fix = "Make layers in __init__ and assign them to self."
            raise Mistake("no-parameters", sentence, "list(module.parameters()) is [].", fix)

    @rules.add("repeatable")
    def repeatable(part: Part) -> None:
        """In evaluation mode the same input gives the same result twice."""
        module, x_BTD = build(part.make, WIDTH), words(2, 3)
        require_repeatable(*(module(x_BTD, mask(3, 2))[0, 0] for _ in range(2)))

    @rules.add("input-unchanged")
    def input_unchanged(part: Part) -> None:
        """The input keeps its values."""
        require_unchanged(build(part.make, WIDTH).forward, x=words(2, 3), mask=mask(3, 2))

    @rules.add("mask-direction")
    def mask_direction(part: Part) -> None:
        """The mask is True on words."""
        module, x_BTD, lengths = build(part.make, WIDTH), words(1, 3), mask(2, size=3)
        other_BTD, padding_BTD = x_BTD.clone(), x_BTD.clone()
        other_BTD[0, 1], padding_BTD[0, 2] = words(2, seed=1)
        y, other, padding = (module(x, lengths)[0, 0] for x in (x_BTD, other_BTD, padding_BTD))
        if same(other, y) and not same(padding, y) and bool(y.abs().max() < 1e6):
            example = f"For the mask [True, True, False], word 0 gives {show(y[:2])}... whatever word 1 is; "
            example += "it changes with the padding."
            fix = "The mask is True on words: mask with ~mask (key_padding_mask of torch.nn is True on padding)."
            raise Mistake("mask-inverted", "Words are masked and padding is attended to.", example, fix)

    @rules.add("order", "mask-direction")
    def order(part: Part) -> None:
        """Words in another order give the same results in that order."""
        module, x_BTD = build(part.make, WIDTH), words(1, 3)
        y_BTD, reversed_BTD = module(x_BTD, mask(3)), module(x_BTD.flip(1), mask(3)).flip(1)
        if not same(y_BTD, reversed_BTD):
            example = f"The first of 3 words gives {show(y_BTD[0, 0, :2])}..., and {show(reversed_BTD[0, 0, :2])}... "
            example += "after the review is reversed."
            fix = "Use no causal mask, and add positions before the layers, not in them."
            raise Mistake("depends-on-order", "The result depends on the order of the words.", example, fix)


def add_behaviour(rules: Rules, *padding: str) -> None:
    """padding: names of the rules about padding."""

    @rules.add("batch", *padding)
    def batch(part: Part) -> None:
        """A review gives the same result alone as in a batch with longer reviews."""
        fix = "No step may mix reviews, such as a softmax or a norm over dimension 0."
        require_same_alone(build(part.make, WIDTH), fix)

    @rules.add("finite-padding", "input-unchanged", *padding)
    def finite_padding(part: Part) -> None:
        """Words and padding have finite results and gradients."""
        check_finite(part, (1, 2), "nan-at-padding")

    @rules.add("empty-review", *padding, "finite-padding")
    def empty_review(part: Part) -> None:
        """A review without words has finite results and gradients."""
        check_finite(part, (0, 2), "nan-without-words")

    @rules.add("gradients", "input-unchanged", "mask-direction")
    def gradients(part: Part) -> None:
        """Every parameter receives a gradient."""
        module = build(part.make, WIDTH)
        module(words(4, 3), mask(3, 3, 3, 3)).square().sum().backward()
        require_gradients(module, idle(module))


def check_finite(part: Part, lengths: tuple[int, ...], name: str) -> None:
    module = build(part.make, WIDTH)
    y_BTD = module(words(2, 2).requires_grad_(), mask(*lengths))
    require_finite(y_BTD, module.named_parameters(), name, f"lengths {list(lengths)}")


# --- tests that parts with other inputs share -------------------------------------------------------------------------


def require_same_alone(call: Callable[[Tensor, Tensor], Tensor], fix: str) -> None:
    """call: with (x_BTD, mask_BT); returns (B, T, D) or (B, D)."""
    x_BTD = words(3, 4)
    together = call(x_BTD, mask(4, 2, 1))
    for row, length in enumerate((4, 2, 1)):
        alone = call(x_BTD[row : row + 1, :length], mask(length))[0]
        other = together[row] if alone.ndim == 1 else together[row, :length]
        if not same(other, alone):
            example = f"The result for a review of {length} starts with {show(alone.flatten()[:2])} alone and with "
            example += f"{show(other.flatten()[:2])} in a batch with reviews of 4, 2 and 1 words."
            raise Mistake("depends-on-batch", "Other reviews of the batch change the result.", example, fix)


def require_finite(
    y: Tensor, variables: Iterable[tuple[str, Tensor]], name: str, example: str, fix: str = SOFTMAX_FIX
) -> None:
    """Tests y and the gradients of its squares with respect to the variables, which have names."""
    what = "a review without words" if name == "nan-without-words" else "the padding after a review"
    if not bool(y.isfinite().all()):
        raise Mistake(name, f"The result of {what} is not finite.", f"For {example}: {show(y.flatten()[:4])}...", fix)
    y.square().sum().backward()
    for key, variable in variables:
        if variable.grad is not None and not bool(variable.grad.isfinite().all()):
            example = f"For {example}, the gradient of {key} starts {show(variable.grad.flatten()[:3])}."
            raise Mistake(name, f"The gradient of {what} is not finite.", example, fix)


def idle(module: nn.Module) -> list[str]:
    """Trainable parameters without a gradient, or with a zero gradient, which only a bias may have."""
    names = []
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        if parameter.requires_grad and (gradient is None or (gradient.ndim > 1 and not bool(gradient.any()))):
            names.append(name)
    return names


def require_gradients(module: nn.Module, without: list[str]) -> None:
    require_registered(module)
    if without:
        fix = "Use the parameter in forward, without detach(), .data, .item() or torch.no_grad()."
        example = f"No gradient: {', '.join(without[:4])}{', ...' * (len(without) > 4)}."
        raise Mistake("no-gradient", f"{len(without)} of the parameters are never trained.", example, fix)


def require_registered(module: nn.Module) -> None:
    """Raises Mistake if parameters() does not include some modules, or if one module is used in several places."""
    for child in module.modules():
        for key, value in vars(child).items():
            if key in vars(nn.Module()) or not isinstance(value, list | tuple | dict):
                continue
            hidden = [v for v in (value.values() if isinstance(value, dict) else value) if isinstance(v, nn.Module)]
            count = sum(p.numel() for h in hidden for p in h.parameters())
            if count and not set(hidden) <= set(module.modules()):
                example = f"self.{key} holds {len(hidden)} modules with {count} numbers; parameters() has "
                example += f"{sum(p.numel() for p in module.parameters())} others, and not these."
                sentence = f"Modules are kept in a Python {type(value).__name__}, so they are never trained."
                raise Mistake("layers-in-a-list", sentence, example, f"Write self.{key} = nn.ModuleList(...).")
    places: dict[nn.Module, list[str]] = {}
    for name, child in module.named_modules(remove_duplicate=False):
        if name and list(child.parameters()):
            places.setdefault(child, []).append(name)
    for names in places.values():
        if len(names) > 1:
            raise shared(f"{', '.join(names)} are the same module, with the same parameters.")


def shared(example: str) -> Mistake:
    fix = "Make a new module for each: nn.ModuleList(Layer(width) for _ in range(3))."
    return Mistake("one-layer-shared", "One layer is used several times instead of several.", example, fix)


def require_repeatable(first: Tensor, second: Tensor) -> None:
    if not same(first.nan_to_num(), second.nan_to_num()):
        example = f"The first numbers of two calls: {show(first[:2])} and {show(second[:2])}."
        fix = "Make layers in __init__, not in forward, and use nn.Dropout, which is off after eval()."
        raise Mistake("random-in-evaluation", "The same input gives another result each time.", example, fix)


def require_unchanged(call: Callable[..., object], **inputs: Tensor) -> None:
    """call: with the inputs, in this order."""
    given = [tensor.clone() for tensor in inputs.values()]
    call(*given)
    for (name, before), after in zip(inputs.items(), given, strict=True):
        if not torch.equal(before, after):
            place = tuple((before != after).nonzero()[0].tolist())
            example = f"{name}{list(place)} was {show(before[place].item())} and is {show(after[place].item())} after."
            fix = "Write x = x + y instead of x += y, and masked_fill instead of masked_fill_."
            raise Mistake("changes-its-input", f"The call changes its argument {name}.", example, fix)
