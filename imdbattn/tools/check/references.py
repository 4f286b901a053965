"""What each part is compared with: formulas of mistakes/, and the numbers that these use."""

import itertools
import re
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from imdbattn.tools.check.accuracy import TEST, TRAIN, FirstWord, accuracy_examples, share
from imdbattn.tools.check.affine import SAMPLES, samples
from imdbattn.tools.check.attention import attention_choices, attention_names
from imdbattn.tools.check.context import decoder_choices, decoder_examples
from imdbattn.tools.check.formulas import (
    RIGHT,
    Binding,
    Call,
    Choice,
    Comparison,
    Names,
    evaluate,
    whole,
    words_only,
)
from imdbattn.tools.check.layers import inside, layer_choices, require_skips
from imdbattn.tools.check.numbers import (
    Mistake,
    NotChecked,
    StudentError,
    mask,
    mistake,
    named,
    normal,
    same,
    show,
)
from imdbattn.tools.check.operations import Operations, require_known_in
from imdbattn.tools.check.part import WIDTH, Part, call, inputs, net_of, record, student
from imdbattn.tools.check.rules import batch, require_shape
from imdbattn.tools.check.scores import additive_choices, bilinear_choices
from imdbattn.tools.check.tables import TABLES, Table

PADDED = "3 reviews of 2, 4 and 3 words and padding"


def mean_examples(part: Part) -> Names:
    x_BTD, numbers = normal(3, 4, WIDTH), torch.zeros(1, 3, WIDTH)
    x_BTD[0, 1], x_BTD[1, 0, 2], numbers[0, :, 0] = 0, 0, torch.tensor([2.0, 4.0, 30.0])
    text = "the words 2 and 4 and padding of 30 as the first numbers"
    return {
        text: (numbers, mask(2, size=3)),
        "3 reviews of 4, 2 and 3 words": (x_BTD, mask(4, 2, 3)),
    }


def position_examples(part: Part) -> Names:
    sizes = (1, 2), (2, 4), (5, 6), (30, 8)
    for size in sizes:
        require_shape(call(part, part.make, *size), size, f"positional_encoding{size}", part)
    return {f"length {length} and width {width}": (length, width) for length, width in sizes}


def examples_of(part: Part) -> Names:
    """The last one has padding after each review."""
    last = [x[1:] for x in inputs(part, 6, 2, 4, 3)]
    texts = (
        "16 reviews of 3 words",
        "1 review of 1 word",
        "1 review of 2 words",
        PADDED,
    )
    return dict(
        zip(texts, (inputs(part, *[3] * 16), inputs(part, 1), inputs(part, 2), last), strict=True)
    )


def encoding_examples(part: Part) -> Names:
    """The vectors are small, so that small differences of the positions are seen."""
    lengths = {
        "16 reviews of 3 words": [3] * 16,
        "1 review of 1 word": [1],
        "1 review of 2 words": [2],
        "2 reviews of 20": [20, 20],
    }
    examples: Names = {}
    for text, one in lengths.items():
        examples[text] = [x / 4 for x in inputs(part, *one)]
    return examples


def encoding_choices(part: Part, net: nn.Module, results: list[Tensor]) -> Iterable[Choice]:
    """The names of the formula of positional_encoding for the shape of x."""
    yield RIGHT, "", lambda x: {"x": x, "length": x.shape[1], "width": x.shape[2]}


def layer_examples(part: Part) -> Names:
    return {f"{SAMPLES} reviews of 2 words": samples(part, 2)} | examples_of(part)


# What formulas use besides the arguments; or the choices of it, which may be computed from the
# first result.
CONSTANT: dict[str, Any] = {
    "scaled_dot_product_attention": partial(attention_names, None, 0, False, whole),
    "test_accuracy": {"share": share, "train": TRAIN, "test": TEST},
}
CHOICES: dict[str, Callable[[Part, nn.Module, list[Tensor]], Iterable[Choice]]] = {
    "SelfAttention": attention_choices,
    "MultiHeadAttention": attention_choices,
    "PlainLayer": layer_choices,
    "ResidualLayer": layer_choices,
    "AdditiveScore": additive_choices,
    "AdditiveAttention": additive_choices,
    "CausalSelfAttention": attention_choices,
    "MultiHeadSelfAttention": attention_choices,
    "PositionalEncoding": encoding_choices,
    "BilinearScore": bilinear_choices,
    "DecoderAttention": decoder_choices,
}
ATTENTIONS = {name for name, choices in CHOICES.items() if choices is attention_choices}
EXAMPLES = {
    "masked_mean": mean_examples,
    "positional_encoding": position_examples,
    "test_accuracy": accuracy_examples,
    "PositionalEncoding": encoding_examples,
    "PlainLayer": layer_examples,
    "ResidualLayer": layer_examples,
    "DecoderAttention": decoder_examples,
}


def agrees(part: Part) -> None:
    """The result is that of the reference; known mistakes are not looked for."""
    reference(part, known=False)


def reference(part: Part, known: bool = True) -> str:
    """The result is that of the reference. Returns the sentence."""
    if not part.adapter:
        return compare(part, known)
    key = known, id(part.adapter.way), torch.get_default_dtype()
    if key not in part.adapter.compared:
        try:
            part.adapter.compared[key] = compare(part, known)
        except (Mistake, NotChecked) as error:
            part.adapter.compared[key] = error
    if isinstance(found := part.adapter.compared[key], Exception):
        raise found
    return found


def prepared(part: Part) -> tuple[Any, Comparison]:
    """The module or function, and the comparison of its results with those of the reference.

    They are the same for agrees and for reference.
    """
    if not part.adapter:
        return prepare(part)
    widths = tuple(part.adapter.widths.items())
    key = id(part.adapter.way), torch.get_default_dtype(), widths
    if key not in part.adapter.prepared:
        part.adapter.prepared[key] = prepare(part)
    return part.adapter.prepared[key]


def prepare(part: Part) -> tuple[Any, Comparison]:
    """As prepared, without the memory of an earlier call."""
    net, table = net_of(part), TABLES[part.kind]

    def result(*given: Any) -> Tensor:
        y = call(part, net, *given)
        return y.detach() if isinstance(y, Tensor) and y.ndim else torch.tensor([student(float, y)])

    examples = EXAMPLES.get(part.kind, examples_of)(part)
    results = [result(*given) for given in examples.values()]
    for model in [x for given in examples.values() for x in given if isinstance(x, FirstWord)]:
        if model.scale.item() != 1:
            raise mistake("changes-its-input", torch.ones(1), model.scale, name="model")
    given = argument_names(part)

    def binding(finding: str, text: str, choice: Any) -> Binding:
        if callable(choice):
            return finding, text, choice
        return finding, text, lambda *x: dict(zip(given, x, strict=True)) | choice

    choices: Iterable[Choice] = [(RIGHT, "", CONSTANT.get(part.kind, {}))]
    if part.kind in CHOICES:
        choices = CHOICES[part.kind](part, net, results)
    bindings = [binding(*choice) for choice in choices]
    keep = words_only if given == ["x", "mask"] and "T" in part.arguments[-1][1] else whole
    return net, Comparison(part, table, results, bindings, examples, keep)


def argument_names(part: Part) -> list[str]:
    """Those of its signature."""
    call = part.signature.partition(": ")[2].partition(" ->")[0]
    return re.sub(r" \([^)]*\)", "", call).split(", ")


def compare(part: Part, known: bool) -> str:
    """As reference, without the memory of an earlier comparison of the same part."""
    net, comparison = prepared(part)
    if not comparison.is_right:
        if not known:
            raise Mistake("differs-from-reference", "", "", "")
        raise why_it_differs(part, net, comparison)
    if known and part.arguments[:-1]:
        require_single_precision(part)
    return comparison.table.texts["holds"]


def require_single_precision(part: Part) -> None:
    """Raises Mistake if the result in float32 is another one than in float64, in which parts are
    compared. In a sum with 1e9, float32 keeps no digit after the point.
    """
    if torch.get_default_dtype() != torch.float64:
        return
    net = net_of(part)
    given = [*EXAMPLES.get(part.kind, examples_of)(part).values()][-1]
    if not isinstance(y := call(part, net, *given), Tensor):
        return
    torch.set_default_dtype(torch.float32)
    try:
        single = net_of(part)
        if isinstance(net, nn.Module):
            for parameter, exact in zip(single.parameters(), net.parameters(), strict=True):
                parameter.data.copy_(exact.data)
        rounded = [
            x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given
        ]
        z = call(part, single, *rounded)
    except StudentError:  # it is written for float64
        return
    finally:
        torch.set_default_dtype(torch.float64)
    if isinstance(z, Tensor) and not same(z.double(), y, 1e-2):
        raise mistake("lost-in-float32", z, y, fix=part.change("lost-in-float32"))


def why_it_differs(part: Part, net: Any, comparison: Comparison) -> Exception:
    """Raises or returns what is wrong with a part whose results are not those of the reference, or
    why this is not known.
    """
    found = with_inside(part, net, comparison)
    may_be_layer = part.adapter is not None and "PlainLayer" in part.adapter.entry.rules
    is_positive = all(bool((y >= 0).all()) for y in comparison.results)
    if part.kind in ATTENTIONS and is_positive and not may_be_layer:
        texts = found.args[2:] if isinstance(found, Mistake) else ("", "")
        change = part.change("function-of-the-result", comparison.table)
        raise Mistake("function-of-the-result", "ReLU is applied to the result.", texts[0], change)
    if not part.arguments[:-1]:
        return found
    if isinstance(found, Mistake) and {"k", "v"} <= {*argument_names(part)}:
        require_row_sums(part, net)
    require_batch(part)
    if not str(found).startswith("Differs"):
        require_effects(part, net)
        if isinstance(found, Mistake) and part.kind == "PositionalEncoding":
            last = [*comparison.examples.values()][-1]
            found = with_columns(found, comparison.results[-1], last[0], comparison.table)
        if isinstance(found, Mistake):
            require_known_in(part, net)
    return found


def with_inside(part: Part, net: Any, comparison: Comparison) -> Exception:
    """As Comparison.diagnose; of a layer, with the mistakes of the attention in it."""
    is_layer = part.kind in ("PlainLayer", "ResidualLayer")
    is_right_inside = is_layer and inside(part, net)
    is_residual = part.kind == "ResidualLayer" and part.adapter and part.name != part.kind
    if is_right_inside and is_residual:
        require_batch(part)
        require_skips(part, net, only_wide=True)
    try:
        found = comparison.diagnose(PADDED if PADDED in comparison.examples else "")
    except Mistake as known:
        if known.args[0] == "no-attention" and softmax_over_one(part, net):
            sentence = "A softmax is over an axis of size one: all scores are 1 then."
            change = part.change("softmax-over-one", comparison.table)
            raise Mistake("softmax-over-one", sentence, known.args[2], change) from known
        if known.args[0] == "skip-in-attention" and not adds_again(part):
            raise NotChecked(f"Differs from the sheet: {known.args[1]}") from known
        if part.kind == "AdditiveAttention":
            require_exact(part, net, known)
        if is_residual and known.args[0] == "no-g":
            raise NotChecked(f"Differs from the sheet: {known.args[1]}") from known
        raise
    if is_right_inside and is_residual:
        require_skips(part, net, only_wide=False)
    return found


def require_exact(part: Part, net: Any, known: Mistake) -> None:
    """Raises Mistake for the mistake of additive scores whose results are those of a known one:
    what depends on the query alone has no effect on the weights.
    """
    if "before the sum" in known.args[1]:
        require_effects(part, net, ("q",), 0)
    if known.args[0] == "no-tanh":
        with Operations() as operations:
            call(part, net, *inputs(part, 3, 3))
        if any(one.name in ("tanh", "tanh_") for one in operations.made):
            sentence = "tanh is not applied to the sum W q + U k."
            raise Mistake("no-tanh", sentence, *known.args[2:])


def require_batch(part: Part) -> None:
    """As rules.batch; of a sheet's layer, it is looked for what words attend to."""
    try:
        batch(part)
    except Mistake as found:
        if part.kind == "DecoderAttention":
            require_own_state(part)
        is_layer = part.kind in ("PlainLayer", "ResidualLayer")
        if not part.adapter or not is_layer or found.args[0] != "depends-on-padding":
            raise
        net, (x_BTD, mask_BT) = net_of(part), inputs(part, 5, 3)
        require_known_in(part, net)
        results = [call(part, net, x_BTD, mask_BT)[1, 0]]
        for place in (1, 4):  # a word, and padding
            moved_BTD = x_BTD.clone()
            moved_BTD[1, place] += normal(WIDTH, seed=3)
            results.append(call(part, net, moved_BTD, mask_BT)[1, 0])
        before, other_word, other_padding = results
        if same(before, other_padding, 1e-6):
            raise
        name = "mask-inverted" if same(before, other_word, 1e-6) else "no-key-mask"
        raise mistake(f"{name}-in-layer", before, other_padding) from found


def require_own_state(part: Part) -> None:
    """Raises Mistake if the state of one review is used for all of them."""
    net, (state_BD, *others) = net_of(part), inputs(part, 3, 3, 3)
    y = call(part, net, state_BD, *others)
    for place, which in ((0, "first"), (-1, "last")):
        one_BD = state_BD[place].expand_as(state_BD)
        if same(y, call(part, net, one_BD, *others), 1e-6):
            raise mistake("state-of-another-review", y[1], which=which)


class Softmaxes(TorchDispatchMode):
    """Notes whether a softmax is over an axis of size one."""

    is_over_one = False

    def __torch_dispatch__(
        self, operation: Call, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation is torch.ops.aten._softmax.default:
            x, axis = args[:2]
            self.is_over_one |= x.shape[axis] == 1 and x.numel() > 1
        return operation(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def softmax_over_one(part: Part, net: Call) -> bool:
    """Whether a softmax is over an axis of size one."""
    with Softmaxes() as softmaxes:
        call(part, net, *inputs(part, 3, 3))
    return softmaxes.is_over_one


def adds_again(part: Part) -> bool:
    """Whether x, which attention itself adds, is not to be added there: the part is no class of a
    sheet with names of its own, or another class of the file adds its input to the result, too.
    """
    if part.adapter is None or not part.adapter.entry.any_name:
        return True
    return any(adds_input(other, part.make) for other in part.others)


def normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def adds_input(part: Part, attention: type) -> bool:
    """Whether the part adds to the results of this class what is, or becomes by LayerNorm, its
    input.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, given: Any, y: Any) -> None:
        if isinstance(module, attention) and given and isinstance(y, Tensor):
            calls.append((given[0].detach().clone(), y.detach().clone()))

    try:
        net = net_of(part)
        with nn.modules.module.register_module_forward_hook(keep):
            made = record(part, net, *inputs(part, 3, 3))
    except (StudentError, NotChecked, Mistake):
        return False
    for x, y in calls:
        like_x = [z for z in made if z.shape == x.shape]
        before = [z for z in like_x if same(normalized(z), normalized(x))]
        like_y = [z for z in made if z.shape == y.shape]
        if any(same(z - y, a) for z, a in itertools.product(like_y, (x, *before))):
            return True
    return False


def require_effects(
    part: Part, net: Call, among: Container[str] | None = None, limit: float = 1e-6
) -> None:
    """Raises Mistake if some of the tensors that the part is given have no effect on the result.

    among: their names, by default all. limit: a smaller effect, relative to the result, is none.
    """
    given = inputs(part, 3, 3)
    before = call(part, net, *given)
    unused = []
    for place, (name, _) in enumerate(part.arguments[:-1]):
        if given[place].is_floating_point() and (among is None or name in among):
            moved = [x + normal(*x.shape, seed=7) if x is given[place] else x for x in given]
            if same(call(part, net, *moved), before, limit):
                unused.append(part.name_of(name))
    if unused:
        fix = part.change("argument-not-used")
        texts = "argument-not-used" if len(unused) == 1 else "arguments-not-used"
        raise named("argument-not-used", texts, before, name=" and ".join(unused), fix=fix)


def require_row_sums(part: Part, net: Call) -> None:
    """Raises Mistake if the result is a sum of the values, with weights that do not sum to 1."""
    given = inputs(part, 3, 3)
    values = given[[name for name, _ in part.arguments].index("v")]
    y = call(part, net, *given).detach()
    if y.shape[-1] < 3 or y.shape[0] != values.shape[0] or y.shape[-1] != values.shape[-1]:
        return
    weights = torch.linalg.lstsq(values.mT, y.mT, driver="gelsd").solution.mT
    if same(weights @ values, y, 1e-4) and not same(sums := weights.sum(-1), torch.ones_like(sums)):
        sentence = "The weights of a query do not sum to 1."
        first = show(weights[0, 0].tolist())
        example = f"For 2 reviews of 3 words, those of the first query are {first}."
        change = part.change("weights-do-not-sum-to-1")
        raise Mistake("weights-do-not-sum-to-1", sentence, example, change)


def with_columns(found: Mistake, y_BTD: Tensor, x_BTD: Tensor, table: Table) -> Mistake:
    """The finding of wrong positions, with the columns that differ from the right ones."""
    names = {"x": x_BTD, "length": x_BTD.shape[1], "width": x_BTD.shape[2]}
    right_BTD = evaluate(table.steps, names)
    if right_BTD is None or right_BTD.shape != y_BTD.shape:
        return found
    finding, sentence, *rest = found.args
    differ_D = (y_BTD - right_BTD).abs().amax((0, 1)) > 1e-3
    zero_D = (y_BTD - x_BTD).abs().amax((0, 1)) < 1e-6
    count = len(differ_D)
    for what, column_D in (("are those of other numbers", differ_D), ("are 0", zero_D)):
        if 0 < int(column_D.sum()) < count:
            columns = ", ".join(map(str, column_D.nonzero().flatten().tolist()))
            sentence += f" The columns {columns}, of 0 to {count - 1}, {what}."
    return Mistake(finding, sentence, *rest)
