"""Rules that sheets add: lengths of each query, no lengths, and positions that are not trained."""

import itertools
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from imdbattn.errors import in_line
from imdbattn.tools.check.numbers import (
    NotChecked,
    StudentError,
    mistake,
    named,
    normal,
    same,
)
from imdbattn.tools.check.part import (
    NAMES,
    Part,
    call,
    inputs,
    net_of,
    record,
    student,
    with_other_padding,
)
from imdbattn.tools.check.sheets import meant, parameters_of


def given_lengths(part: Part, *values: list[int] | int) -> list[torch.Tensor]:
    """The arguments for two reviews of three words, with these lengths, (B,) or (B, Q)."""
    *given, _ = inputs(part, 3, 3)
    lengths = torch.tensor(values)
    if part.arguments[-2][0] == "mask":
        words = torch.arange(3) < lengths[..., None]
        return [*given, words if lengths.ndim == 2 else words[:, None]]
    return [*given, lengths]


def require_lengths(part: Part) -> None:
    if part.adapter and not part.adapter.masked:
        raise NotChecked(f"{part.name} is given no lengths.")


def of_queries(part: Part) -> None:
    """Lengths of two dimensions are those of each query."""
    require_lengths(part)
    net, lengths = net_of(part), [[1, 2, 3], [3, 1, 2]]
    right = call(part, net, *given_lengths(part, 3, 3))
    try:
        found = call(part, net, *given_lengths(part, *lengths))
        if found.shape != right.shape:
            raise StudentError(ValueError(f"the result has the shape {tuple(found.shape)}"))
    except StudentError as error:
        if any(other.kind == "Decoder" for other in part.others):
            reason = "Lengths of two dimensions raise an exception; the decoder does not use them."
            raise NotChecked(reason) from error
        raise
    for query in range(3):
        one = [row[query] for row in lengths]
        right = call(part, net, *given_lengths(part, *one))
        if not same(found[:, query], right[:, query]):
            raise mistake("lengths-of-queries-ignored", found[:, query], right[:, query])


def none(part: Part) -> None:
    """Without lengths, all words count."""
    require_lengths(part)
    net = net_of(part)
    *given, _ = inputs(part, 3, 3)
    found, right = call(part, net, *given, None), call(part, net, *given_lengths(part, 3, 3))
    if not isinstance(found, torch.Tensor):
        values = {"text": "Without lengths, the result", "signature": part.shown}
        raise mistake("not-a-tensor", type=type(found).__name__, **values)
    if not same(found, right):
        raise mistake("none-hides-words", found, right)


def attention_mask(part: Part) -> None:
    """A bool attn_mask is True where a word must not attend, as of torch.nn.MultiheadAttention."""
    assert part.adapter is not None
    given_names = parameters_of(getattr(part.make, "forward", part.make))
    if "attn_mask" not in given_names or "attn_mask" in used_by(part):
        raise NotChecked(f"{part.name} has no attn_mask beside the mask of padding.")
    net = net_of(part)
    given = inputs(part, 3, 3)
    moved = [x.clone() for x in given[:-1]]
    for x in moved:
        x[:, -1] += 1
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)

    def result(x: list[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = call(part, partial(net, attn_mask=mask), *x)
        return found.detach()

    def results(mask: torch.Tensor | None) -> list[torch.Tensor]:
        try:
            return [result(x, mask) for x in (given, [*moved, given[-1]])]
        except StudentError as error:
            raise NotChecked("attn_mask was not checked: it is no bool (T, T).") from error

    (without, _), (y, z) = results(None), results(later)
    if same(y, without, 1e-6):
        raise mistake("attention-mask-not-used", y)
    if not same(y[:, 0], z[:, 0], 1e-6):
        first = [x.clone() for x in given[:-1]]
        for x in first[1:]:
            x[:, 0] += 1
        reads_itself = len(first) > 1 and not same(
            y[:, 0], result([*first, given[-1]], later)[:, 0], 1e-6
        )
        finding = "attention-mask-too-weak" if reads_itself else "attention-mask-inverted"
        raise mistake(finding, y[0, 0], z[0, 0])
    shorter = inputs(part, 3, 2)
    others = with_other_padding(part, shorter, inputs(part, 3, 2, seed=1), 2)
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    if not same(y := result(given, nothing), without):
        raise mistake("attention-mask-changes-scores", y, without)
    y, z = (result(x, nothing)[1, :2] for x in (shorter, others))
    if not same(y, z, 1e-5):
        raise mistake("attention-mask-alone", y[0], z[0])
    require_added(part, net, given, without)


def require_added(
    part: Part, net: nn.Module, given: list[torch.Tensor], without: torch.Tensor
) -> None:
    """Raises Mistake if an attn_mask of numbers is multiplied by a number before it is added to the
    scores, or changes them in another way: the weights with it are compared with those with zeros.

    without: the result without attn_mask.
    """

    def weights(bias: torch.Tensor) -> list[torch.Tensor]:
        made = record(part, partial(net, attn_mask=bias), *given)
        square = [x for x in made if x.shape[-2:] == bias.shape and bool((x > 0).all())]
        return [x for x in square if same(x.sum(-1), torch.ones(x.shape[:-1]))]

    bias = normal(3, 3, seed=8)
    try:
        y = call(part, partial(net, attn_mask=torch.zeros(3, 3)), *given)
        before, after = weights(torch.zeros(3, 3)), weights(bias)
    except StudentError:  # it may be bool alone
        return
    if not same(y, without):
        raise mistake("attention-mask-changes-scores", y, without)
    added = bias - bias.mean(-1, keepdim=True)
    numbers = []
    for x, y in itertools.product(before, after):
        if x.shape == y.shape:
            change = (y / x).log()
            change = change - change.mean(-1, keepdim=True)
            number = (change * added).mean() / added.square().mean()
            if same(change, number * added + 0 * change, 1e-4):
                numbers.append(number)
    if numbers and not any(same(number, torch.ones(())) for number in numbers):
        raise named("added-mask-changed", "attention-mask-scaled", numbers[0])


def added_mask(part: Part) -> None:
    """A mask of numbers is added to the scores as it is."""
    adapter = part.adapter
    assert adapter is not None
    if "added" not in adapter.way.says:
        raise NotChecked(f"The mask of {part.name} is not added to the scores.")
    q, k, v, mask = inputs(part, 3, 3)
    bias = normal(*mask.shape, seed=8)
    way = adapter.way
    arguments = {key: "bias" if "mask" in text else text for key, text in way.arguments.items()}
    adapter.way = replace(way, arguments=arguments)
    try:
        found = call(part, partial(net_of(part), bias=bias), q, k, v, mask)
    finally:
        adapter.way = way
    right = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    if not same(found, right):
        raise mistake("added-mask-changed", found, right)


def sizes(part: Part) -> None:
    """Queries, keys and values may have sizes of their own."""
    adapter = part.adapter
    assert adapter is not None
    widths = {"query_width": 5, "key_width": 6, "value_width": 7}
    module = student(adapter.build, part.make, part.sizes | NAMES | widths)
    adapter.attach(module)
    given = [normal(2, 3, width) for width in widths.values()]
    try:
        call(part, module.eval(), *given, inputs(part, 3, 3)[-1])
    except StudentError as error:
        reason = in_line(error.args[0], None)
        raise mistake("sizes-exchanged", error=reason, **widths) from error


def any_mask(part: Part) -> None:
    """The mask may be True on any keys, not only on the first ones."""
    q, k, v, _ = inputs(part, 3, 3)
    mask = torch.tensor([[True, False, True], [False, True, True]])[:, None]
    found = call(part, net_of(part), q, k, v, mask)
    right = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if not same(found, right):
        raise mistake("mask-as-length", found, right)


def used_by(part: Part) -> list[str]:
    """The names of the arguments that are given in the way that was found."""
    assert part.adapter is not None
    wanted = part.adapter.way.arguments
    names = parameters_of(getattr(part.make, "forward", part.make))
    return [name for name in names if meant(name, wanted)]


def positions_trained(part: Part) -> None:
    """The positions are not trained."""
    net = net_of(part)
    if isinstance(net, nn.Module):
        for name, parameter in net.named_parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                raise mistake("positions-trained", name=name, shape=tuple(parameter.shape))
