"""Rules that sheets add: lengths of each query, no lengths, other masks, and other sizes."""

from functools import partial

import torch
from torch import nn

from imdbattn.errors import in_line
from imdbattn.tools.check.context import bilinear
from imdbattn.tools.check.numbers import NotChecked, StudentError, mistake, same
from imdbattn.tools.check.part import IN_SHEETS, Part, Rule, call, inputs, net_of, normal, student
from imdbattn.tools.check.rules import with_other_padding
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
    if not part.is_masked:
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
        if any(other.kind.name == "Decoder" for other in part.others):
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
    names = parameters_of(getattr(part.make, "forward", part.make))
    is_given = meant("attn_mask", part.adapter.way.arguments) is not None
    if "attn_mask" not in names or is_given:
        raise NotChecked(f"{part.name} has no attn_mask beside the mask of padding.")
    net, given = net_of(part), inputs(part, 3, 3)
    moved = [*(x.clone() for x in given[:-1]), given[-1]]
    for x in moved[:-1]:
        x[:, -1] += 1
    later, nothing = torch.ones(3, 3).triu(1) > 0, torch.zeros(3, 3) > 0

    def result(x: list[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = call(part, partial(net, attn_mask=mask), *x)
        return found.detach()

    without = result(given, None)
    try:
        y, z = (result(x, later) for x in (given, moved))
    except StudentError as error:
        raise NotChecked("attn_mask was not checked: it is no bool (T, T).") from error
    if same(y, without, 1e-6):
        raise mistake("attention-mask-not-used", y)
    if not same(y[:, 0], z[:, 0], 1e-6):
        raise mistake("attention-mask-inverted", y[0, 0], z[0, 0])
    if not same(y := result(given, nothing), without):
        raise mistake("attention-mask-changes-scores", y, without)
    shorter = inputs(part, 3, 2)
    others = with_other_padding(part, shorter, inputs(part, 3, 2, seed=1), 2)
    y, z = (result(x, nothing)[1, :2] for x in (shorter, others))
    if not same(y, z, 1e-5):
        raise mistake("attention-mask-alone", y[0], z[0])


def any_mask(part: Part) -> None:
    """The mask may be True on any keys, not only on the first ones."""
    q, k, v, _ = inputs(part, 3, 3)
    mask = torch.tensor([[True, False, True], [False, True, True]])[:, None]
    found = call(part, net_of(part), q, k, v, mask)
    right = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if not same(found, right):
        raise mistake("mask-as-length", found, right)


def sizes(part: Part) -> None:
    """Queries, keys and values may have sizes of their own."""
    adapter = part.adapter
    assert adapter is not None
    widths = {"query_width": 5, "key_width": 6, "value_width": 7}
    module = student(adapter.build, part.make, part.sizes | IN_SHEETS | widths)
    adapter.attach(module)
    given = [normal(2, 3, width) for width in widths.values()]
    try:
        call(part, module.eval(), *given, inputs(part, 3, 3)[-1])
    except StudentError as error:
        reason = in_line(error.args[0], None)
        raise mistake("sizes-exchanged", error=reason, **widths) from error


NEEDED = ("repeatable", "reference")
EXTRA = {  # by the name in a sheet
    "lengths-of-queries": Rule("lengths-of-queries", of_queries, NEEDED),
    "no-lengths": Rule("no-lengths", none, NEEDED),
    "bilinear": Rule("bilinear", bilinear, NEEDED),
    "attention-mask": Rule("attention-mask", attention_mask, NEEDED),
    "any-mask": Rule("any-mask", any_mask, NEEDED),
    "sizes": Rule("sizes", sizes, NEEDED),
}
