"""Rules of Classifier: vectors -> + positions -> layers -> masked mean or CLS -> logits.

Shape suffixes: B reviews, T positions, V words of the vocabulary, D width, C classes.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.check.rules import Mistake, NotChecked, Part, Rules, accepts, build, normal, require_shape, same, show
from imdbattn.check.sequence import (
    idle,
    require_finite,
    require_gradients,
    require_repeatable,
    require_unchanged,
    shared,
)

RULES = Rules()
VOCABULARY, WIDTH, CLASSES = 12, 16, 3
SEEDS = range(3)  # of models; a change that has no effect in any of them is taken to have none
GAIN = 1.6  # with 1, plain layers make the words of a review so similar that mistakes have small effects
REVIEW = [[4, 2, 9]]
# A part that changes its input fails in the backward pass.
IN_PLACE = ("masked_mean.input-unchanged", "PlainLayer.input-unchanged", "ResidualLayer.input-unchanged")
CLS_FIX = "self.cls = nn.Parameter(torch.randn(width)); in forward torch.cat([cls, x], 1), cls of shape (B, 1, D)."
LENGTHS_FIX = "Make the mask from the lengths, torch.arange(T) < lengths[:, None], and use it in f and in the mean."


def vectors_VD() -> Tensor:
    return normal(VOCABULARY, WIDTH)


def model(part: Part, table_VD: Tensor | None = None, seed: int = 0, **options: Any) -> nn.Module:
    """A classifier with random weights. options: positions, cls."""
    table_VD = vectors_VD() if table_VD is None else table_VD.clone()
    return build(part.make, table_VD, CLASSES, seed=seed, gain=GAIN, **options)


@cache
def variants(part: Part) -> list[tuple[str, dict[str, Any]]]:
    """Text and options of the implemented classifiers, without those whose results are random."""
    written = []
    for options in ({}, {"positions": "sinusoidal"}, {"cls": True}, {"positions": "sinusoidal", "cls": True}):
        if accepts(part.make, *options):
            with suppress(NotImplementedError):
                net = model(part, **options)
                if same(*(logits(net, REVIEW).nan_to_num() for _ in range(2))):
                    text = ", ".join(f"{name}={value!r}" for name, value in options.items())
                    written.append((text or "no options", options))
    return written


def models(part: Part) -> Iterator[tuple[str, nn.Module]]:
    """Each of the variants with the weights of each of the SEEDS, and the text of its options."""
    for text, options in variants(part):
        for seed in SEEDS:
            yield text, model(part, seed=seed, **options)


def logits(net: nn.Module, tokens: Any, lengths: Any = None) -> Tensor:
    """Detached, (B, C). lengths: all of the tokens by default."""
    tokens_BT = torch.as_tensor(tokens)
    lengths_B = torch.full(tokens_BT.shape[:1], tokens_BT.shape[1]) if lengths is None else torch.as_tensor(lengths)
    return net(tokens_BT, lengths_B).detach()


def calls(net: nn.Module, tokens: Any) -> list[tuple[nn.Module, list[Tensor], Tensor]]:
    """Each call of a module that returns a tensor, with the tensors it receives; the last one is that of net."""
    made = []

    def watch(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        if isinstance(output, Tensor):
            made.append((module, [x for x in (*inputs, *options.values()) if isinstance(x, Tensor)], output))

    for module in net.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # which has no hooks
            module.register_forward_hook(watch, with_kwargs=True)
    logits(net, tokens)
    return made


@RULES.add("shape")
def shape(part: Part) -> None:
    """Ids (B, T) and lengths (B,) in, logits (B, C) out."""
    net = model(part)
    for reviews, length in ((2, 3), (1, 3), (2, 1), (1, 1)):
        y_BC = net(torch.full((reviews, length), 4), torch.full((reviews,), length))
        call = f"For {reviews} reviews of {length} words and {CLASSES} classes, the result"
        require_shape(y_BC, (reviews, CLASSES), call, "Squeeze no dimension that may be 1.")


@RULES.add("repeatable")
def repeatable(part: Part) -> None:
    """In evaluation mode the same reviews give the same logits twice."""
    net = model(part)
    require_repeatable(*(logits(net, REVIEW)[0] for _ in range(2)))


@RULES.add("logits")
def returns_logits(part: Part) -> None:
    """The results are logits, without a softmax."""
    reviews = [[a, b] for a in range(4) for b in (5, 8)]
    logits_NC = torch.cat([logits(model(part, seed=seed), reviews) for seed in range(4)])
    example = f"The classes of one review get {show(logits_NC[0])}, which sum to {float(logits_NC[0].sum()):.3g}."
    fix = "Return the output of the last nn.Linear; for probabilities apply softmax outside of the model."
    if bool((logits_NC >= 0).all()) and same(logits_NC.sum(1), torch.ones(len(logits_NC))):
        sentence = "The results are probabilities: with cross_entropy, which has a softmax, it is applied twice."
        raise Mistake("softmax-twice", sentence, example, fix)
    if same(logits_NC.exp().sum(1), torch.ones(len(logits_NC))):
        sentence = "The results are logarithms of probabilities: cross_entropy applies log_softmax itself."
        raise Mistake("softmax-twice", sentence, example, fix)
    if bool((logits_NC >= 0).all()):
        sentence = "None of the logits is negative: a ReLU or sigmoid follows the last Linear."
        raise Mistake("logits-not-negative", sentence, example, fix)
    *inner, (_, _, y_BC) = calls(model(part), reviews)
    outputs = [y for module, _, y in inner if isinstance(module, nn.Linear) and y.shape == y_BC.shape]
    if outputs:
        z_BN = torch.cat([*outputs, torch.ones(len(y_BC), 1)], 1)  # a factor, an offset or a sum may follow
        fitted_BC = z_BN @ torch.linalg.lstsq(z_BN, y_BC, rcond=torch.finfo(y_BC.dtype).eps ** 0.5).solution
        if bool((fitted_BC - y_BC).abs().max() > 1e-3 * y_BC.abs().max()):
            example = f"For one review the last Linear gives {show(outputs[-1][0])}, and the result is {show(y_BC[0])}."
            raise Mistake("function-after-linear", "A function, such as tanh, follows the last Linear.", example, fix)


@RULES.add("frozen-vectors")
def frozen_vectors(part: Part) -> None:
    """The vectors are not trained."""
    for name, parameter in model(part).named_parameters():
        if parameter.requires_grad and tuple(parameter.shape) == (VOCABULARY, WIDTH):
            example = f"{name} has the shape of the vectors, {tuple(parameter.shape)}, and requires_grad=True."
            fix = "nn.Embedding.from_pretrained(vectors) is frozen; or set requires_grad=False."
            raise Mistake("vectors-trained", "The vectors are trained.", example, fix)


@RULES.add("ids", "frozen-vectors", "SelfAttention.mask-direction")
def ids(part: Part) -> None:
    """Every id is a word: only the lengths determine what is padding."""
    reviews = torch.arange(VOCABULARY).view(4, 3)
    y_SBC, flipped_SBC = (
        torch.stack([logits(model(part, table_VD, seed), reviews) for seed in SEEDS])
        for table_VD in (vectors_VD(), vectors_VD().flip(0))
    )
    if same(y_SBC, flipped_SBC) and not same(y_SBC, y_SBC[:, :1].expand_as(y_SBC)):
        example = f"The review [0, 1, 2] has the logits {show(y_SBC[0, 0])} whatever the vectors are."
        fix = "Take them from the argument: nn.Embedding.from_pretrained(vectors)."
        raise Mistake("vectors-not-used", "The vectors have no effect on the logits.", example, fix)
    net = model(part)
    for token in range(VOCABULARY):
        third, others = (token + 6) % VOCABULARY, [(token + place) % VOCABULARY for place in (1, 2)]
        before, after = logits(net, [[third, token]]), []
        for other in others:
            table_VD = vectors_VD()
            table_VD[[token, other]] = table_VD[[other, token]]
            after.append(logits(model(part, table_VD), [[third, other]]))
        if not any(same(before, one) for one in after):
            example = f"A review of the words {third} and {token} gives {show(before[0])}; with the same vectors, but "
            example += f"{others[0]} as the id of the second, it gives {show(after[0][0])}."
            if token == 0:
                sentence = 'The word with id 0, which in GloVe is "the", is treated as padding.'
                raise Mistake("id-0-as-padding", sentence, example, LENGTHS_FIX)
            sentence = f"The word with id {token} is treated as padding, such as all unknown words if it is their id."
            raise Mistake("word-as-padding", sentence, example, LENGTHS_FIX)


@RULES.add("padding", "ids", "SelfAttention.key-mask", "SelfAttention.batch", "SelfAttention.finite-padding")
def padding(part: Part) -> None:
    """Padding does not change the logits, whatever ids it has."""
    for text, net in models(part):
        alone = logits(net, REVIEW)
        for padded in ([4, 2, 9, 0], [4, 2, 9, 7, 7, 0]):
            result = logits(net, [padded], [3])
            if same(result, alone):
                continue
            example = f"With {text}, the words 4, 2, 9 give {show(alone[0])} alone and {show(result[0])} "
            example += f"as {padded} with length 3."
            if same(result, logits(net, [padded])):
                raise Mistake("lengths-ignored", "Padding is read as words.", example, LENGTHS_FIX)
            raise Mistake("depends-on-padding", "Padding changes the logits.", example, LENGTHS_FIX)


@RULES.add("batch", "padding")
def batch(part: Part) -> None:
    """A review has the same logits alone as in a batch with longer reviews."""
    reviews = ([4, 2, 9, 1], [4, 2], [3], [4, 2])
    padded = [[*review, 0, 0, 0][:4] for review in reviews]
    for text, net in models(part):
        together = logits(net, padded, list(map(len, reviews)))
        for row, review in enumerate(reviews):
            (alone,) = logits(net, [review])
            if not same(together[row], alone):
                example = f"With {text}, the review {review} gives {show(alone)} alone and "
                example += f"{show(together[row])} in row {row} of a batch of 4."
                fix = "Reviews are in dimension 0 and positions in dimension 1: use x.shape[1] for positions."
                raise Mistake("depends-on-batch", "Other reviews of the batch change the logits.", example, fix)


@RULES.add("order")
def order(part: Part) -> None:
    """Without positions, the order of the words has no effect."""
    for net in (model(part, seed=seed) for seed in SEEDS):
        forwards, backwards = logits(net, REVIEW)[0], logits(net, [REVIEW[0][::-1]])[0]
        if not same(forwards, backwards):
            example = f"The words 4, 2, 9 give {show(forwards)}; 9, 2, 4 give {show(backwards)}."
            fix = "Add positions only if the argument positions says so, and use no causal mask."
            raise Mistake("depends-on-order", "Without positions, the order of words changes the logits.", example, fix)


@RULES.add("mean", "padding", "order", "SelfAttention.softmax-over-keys", "masked_mean.padding")
def mean(part: Part) -> None:
    """A word repeated three times has the same logits as the word alone."""
    for net in (model(part, seed=seed) for seed in SEEDS):
        once, thrice = logits(net, [[4]])[0], logits(net, [[4, 4, 4]])[0]
        if not same(once, thrice):
            fix = "Average with masked_mean; in f, the weights of a query sum to 1."
            example = f"The review [4] gives {show(once)}; [4, 4, 4] gives {show(thrice)}."
            sentence = "A word repeated three times has other logits than the word alone: words are not averaged."
            raise Mistake("not-a-mean", sentence, example, fix)


@RULES.add("positions", "order", "batch", option="positions")
def positions(part: Part) -> None:
    """With positions, the order of the words has an effect."""
    pairs = [[logits(model(part, seed=s, positions="sinusoidal"), [r]) for r in ([4, 2, 9], [9, 2, 4])] for s in SEEDS]
    if not all(same(*pair) for pair in pairs):
        return
    example = f"With positions='sinusoidal', the words 4, 2, 9 and 9, 2, 4 both give {show(pairs[0][0][0])}."
    fix = "x = vectors[tokens] + positional_encoding(T, D), before the first layer."
    if all(same(logits(model(part, seed=s), REVIEW), pair[0]) for s, pair in zip(SEEDS, pairs, strict=True)):
        raise Mistake("no-positions", "Positions have no effect.", example, fix)
    sentence = "Positions are added where their order is lost, such as after the layers."
    raise Mistake("positions-after-layers", sentence, example, fix)


@RULES.add("cls-before-words", "ids", "order", option="cls")
def cls_before_words(part: Part) -> None:
    """With CLS, every word still has an effect."""
    without = []  # words whose vectors have no effect
    for word in REVIEW[0]:
        other_VD = vectors_VD()
        other_VD[word] = other_VD[word].flip(0)
        nets = ((model(part, seed=seed, cls=True), model(part, other_VD, seed, cls=True)) for seed in SEEDS)
        if all(same(logits(first, REVIEW), logits(second, REVIEW)) for first, second in nets):
            without.append(word)
    if without:
        example = f"With cls=True and the review {REVIEW[0]}, the vector of word {without[0]} has no effect."
        if without == [REVIEW[0][0]]:
            raise Mistake("cls-over-first-word", "CLS is written over the first word.", example, CLS_FIX)
        fix = "The mask becomes longer by one at the front: F.pad(mask, (1, 0), value=True)."
        raise Mistake("cls-hides-words", f"With CLS, {len(without)} of 3 words have no effect.", example, fix)


@RULES.add("cls-read", "cls-before-words", option="cls")
def cls_read(part: Part) -> None:
    """CLS is read at position 0 after the last layer."""
    made = calls(model(part, cls=True), [[4, 2, 9], [3, 8, 1]])
    long = [y for _, _, y in made if y.shape == (2, 4, WIDTH)]  # for CLS and the words
    pooled = [inputs[0] for module, inputs, y in made if isinstance(module, nn.Linear) and y.shape == (2, CLASSES)]
    if long and pooled:
        last_BTD, read_BD = long[-1], pooled[-1]
        mean, words = last_BTD.mean(1), last_BTD[:, 1:].mean(1)
        places = {"the mean of all positions": mean, "the mean of the words": words}
        places |= {f"position {place}": last_BTD[:, place] for place in (1, 2, 3)}
        if same(read_BD, last_BTD[:, 0]):
            return
        for text, value_BD in places.items():
            if same(read_BD, value_BD):
                example = f"For a review of 3 words, the last Linear reads {text} of 0 to 3."
                raise Mistake("cls-read-elsewhere", f"With CLS, the result is {text}.", example, "Read x[:, 0].")
    raise NotChecked("Where CLS is read was not checked: no module returns the vectors that the last Linear reads.")


@RULES.add("empty-review", "padding", *IN_PLACE)
def empty_review(part: Part) -> None:
    """A review without words gives finite logits and gradients."""
    for text, options in variants(part):
        net = model(part, **options)
        y_BC = net(torch.tensor([[0, 0], [4, 2]]), torch.tensor([0, 2]))
        require_finite(y_BC, net.named_parameters(), "nan-without-words", f"{text} and lengths [0, 2]")


@RULES.add("gradients", "logits", *IN_PLACE)
def gradients(part: Part) -> None:
    """Every layer is registered, and every parameter receives a gradient."""
    nets = [model(part, **options) for _, options in variants(part)]
    for net in nets:
        loss(net).backward()
    # A parameter of CLS may be unused without it.
    trained = {name for net in nets for name, _ in net.named_parameters() if name not in idle(net)}
    require_gradients(nets[-1], [name for name in idle(nets[0]) if name not in trained])
    require_other_layers(nets[0])


def require_other_layers(net: nn.Module) -> None:
    """Raises Mistake if a module with a matrix is called with a tensor that depends on an earlier result of its own."""
    results: dict[nn.Module, list[Tensor]] = {}
    again = set()
    for module, inputs, result in calls(net, REVIEW):
        earlier = results.setdefault(module, [])
        if earlier and any(parameter.ndim > 1 for parameter in module.parameters()):
            for x in (x for x in inputs if x.requires_grad):
                gradients = torch.autograd.grad(x.sum(), earlier, retain_graph=True, allow_unused=True)
                again |= {module} if any(gradient is not None for gradient in gradients) else set()
        earlier.append(result)
    for name, module in net.named_modules():  # a layer comes before its parts
        if module in again:
            raise shared(f"{name} is called {len(results[module])} times, on its own results.")


def loss(net: nn.Module) -> Tensor:
    tokens_BT = torch.arange(24).view(8, 3) % VOCABULARY
    y_BC: Tensor = net(tokens_BT, torch.full((8,), 3))
    return nn.functional.cross_entropy(y_BC, torch.arange(8) % CLASSES)


@RULES.add("cls-trained", "ids", "gradients", option="cls")
def cls_trained(part: Part) -> None:
    """CLS is a parameter that is trained."""
    net, other = model(part, cls=True), model(part)
    if not same(logits(net, REVIEW), logits(net, REVIEW)):
        example = "With cls=True, two calls give different logits."
        raise Mistake("cls-not-trained", "CLS is drawn again in each call, so it is never trained.", example, CLS_FIX)
    used: list[set[str]] = []
    for each in (net, other):
        loss(each).backward()
        used.append({name for name, p in each.named_parameters() if p.grad is not None and bool(p.grad.any())})
    if not used[0] - used[1]:
        example = f"The {len(used[0])} parameters that receive a gradient with cls=True receive one without it as well."
        raise Mistake("cls-not-trained", "CLS is never trained: no parameter belongs to it.", example, CLS_FIX)


@RULES.add("input-unchanged", "frozen-vectors")
def input_unchanged(part: Part) -> None:
    """The ids, lengths and vectors keep their values."""
    _, options = variants(part)[-1]

    def call(vectors: Tensor, *inputs: Tensor) -> None:
        build(part.make, vectors, CLASSES, **options).forward(*inputs)

    tokens_BT, lengths_B = torch.tensor([[4, 2, 9], [3, 0, 0]]), torch.tensor([3, 0])
    require_unchanged(call, vectors=vectors_VD(), tokens=tokens_BT, lengths=lengths_B)
