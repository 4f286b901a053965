"""The encoder-decoder: teacher forcing against its own steps, padding, scores, and search."""

from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from benchmarks import textbook
from imdbattn.nn.encoder_decoder import BOS, EOS, PAD, EncoderDecoder, beam_search
from imdbattn.nn.scores import Additive, Bilinear, Dot, ScaledDot

SCORES = {"none": None, "additive": Additive, "dot": Dot, "scaled dot": ScaledDot}
SCORES["bilinear"] = Bilinear
FORMS = [*((score, "gru", 1) for score in SCORES), ("none", "lstm", 2), ("additive", "lstm", 2)]
VOCABULARY = 12


def net(
    score: str = "additive", cell: str = "gru", layers: int = 2, seed: int = 0, sharp: float = 1.0
):
    """An untrained model in evaluation mode; `sharp` makes its distributions less alike."""
    torch.manual_seed(seed)
    sizes = {"width": 6, "hidden": 8, "dropout": 0.3, "layers": layers, "cell": cell}
    built = EncoderDecoder(VOCABULARY, VOCABULARY, SCORES[score], **sizes).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5 * sharp)
    return built


def batch(*lengths: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sources of these lengths, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    source_BS = torch.randint(4, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    lengths_B = torch.tensor(lengths)
    return source_BS * (torch.arange(max(lengths)) < lengths_B[:, None]), lengths_B


def weighed(model, source_BS, lengths_B, target_BT) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits, and the weights (B, T, S) of a model that attends."""
    attends = model.decoder.score is not None
    weights_BTS = model.attention_weights(source_BS, lengths_B, target_BT) if attends else None
    return model(source_BS, lengths_B, target_BT), weights_BTS


@pytest.mark.parametrize(("score", "cell", "layers"), FORMS)
def test_step_by_step_agrees_with_teacher_forcing(score, cell, layers):
    """Fed with its own output, the decoder gives the logits of the whole at once."""
    model = net(score, cell, layers)
    source_BS, lengths_B = batch(5, 2, 7)
    written = beam_search(model, source_BS, lengths_B)
    tokens_BT = written.tokens_BKT[:, 0]
    logits_BTV, weights_BTS = weighed(model, source_BS, lengths_B, tokens_BT)
    state, before_B1 = model.encode(source_BS, lengths_B), torch.full((3, 1), BOS)
    for step in range(tokens_BT.shape[1]):
        logits_B1V, state = model.decoder(before_B1, state)
        torch.testing.assert_close(logits_B1V[:, 0], logits_BTV[:, step])
        if weights_BTS is not None:
            torch.testing.assert_close(state.weights_BTS[:, 0], weights_BTS[:, step])
        before_B1 = tokens_BT[:, step : step + 1]
    # And its probability is the sum over those logits, up to and with EOS.
    log_BT = logits_BTV.log_softmax(-1).gather(2, tokens_BT[..., None])[..., 0]
    log_B = (log_BT * (tokens_BT != PAD)).sum(1)
    torch.testing.assert_close(written.log_probability_BK[:, 0], log_B)


@pytest.mark.parametrize(("score", "cell", "layers"), FORMS)
def test_a_source_gives_the_same_output_alone_in_any_batch_and_with_any_padding(
    score, cell, layers
):
    model = net(score, cell, layers)
    source_BS, lengths_B = batch(3, 9, 1, 6)
    target_BT = torch.randint(4, VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(2))
    together, weights_BTS = weighed(model, source_BS, lengths_B, target_BT)
    written = beam_search(model, source_BS, lengths_B)
    for row, length in enumerate(lengths_B.tolist()):
        for padding in (0, 4):
            alone_1S = torch.nn.functional.pad(source_BS[row : row + 1, :length], (0, padding))
            length_1 = lengths_B[row : row + 1]
            logits, weights = weighed(model, alone_1S, length_1, target_BT[row : row + 1])
            torch.testing.assert_close(logits[0], together[row])
            if weights_BTS is not None:
                torch.testing.assert_close(weights[0, :, :length], weights_BTS[row, :, :length])
                assert not weights[0, :, length:].any(), "padding is attended to"
                torch.testing.assert_close(weights.sum(-1), torch.ones(1, 5))
            mine = beam_search(model, alone_1S, length_1).tokens_BKT[0, 0].tolist()
            theirs = written.tokens_BKT[row, 0].tolist()
            assert theirs[: len(mine)] == mine
            assert not any(theirs[len(mine) :])


def test_an_encoder_on_a_gpu_that_does_not_pack_gives_the_same(monkeypatch):
    model = net("additive", "gru", 1)
    source_BS, lengths_B = batch(3, 9, 1, 6)
    packed = model.encode(source_BS, lengths_B)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    whole = model.encode(source_BS, lengths_B)
    torch.testing.assert_close(whole.outputs_BSH, packed.outputs_BSH)
    torch.testing.assert_close(whole.recurrent, packed.recurrent)


# of parts of our two modules in the textbook's one
NAMES = {"encoder": {"embedding": "source_embedding", "net": "encoder"}}
NAMES["decoder"] = {"embedding": "target_embedding", "net": "decoder", "head": "output"}
NAMES["decoder"]["score"] = "attention"


@pytest.mark.parametrize(
    ("score", "theirs"),
    [
        ("additive", textbook.AdditiveAttention),
        ("bilinear", textbook.BilinearAttention),
        ("dot", textbook.DotAttention),
        ("scaled dot", partial(textbook.DotAttention, scaled=True)),
    ],
)
def test_logits_and_gradients_equal_those_of_the_textbook(score, theirs):
    """With the same weights as a separately written loop that projects at each step."""
    ours = net(score, "gru", layers=2)
    other = textbook.TextbookTranslator(VOCABULARY, 6, 8, 2, theirs(8))
    weights = {}
    for name, weight in ours.state_dict().items():
        side, part, end = name.split(".", 2)
        name = f"{NAMES[side][part]}.{end}"
        if name == "attention.weight.weight":  # h^T W s: ours projects the query, theirs the key
            name, weight = "attention.key.weight", weight.t()
        weights[name] = weight
    other.load_state_dict(weights)
    source_BS, lengths_B = batch(7, 3, 5)
    target_BT = torch.randint(4, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(5))
    before_BT = torch.cat([torch.full((3, 1), BOS), target_BT[:, :-1]], 1)
    mine_BTV = ours(source_BS, lengths_B, target_BT)
    their_BTV = other(source_BS, lengths_B, before_BT)
    torch.testing.assert_close(mine_BTV, their_BTV)
    for logits_BTV in (mine_BTV, their_BTV):
        torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten()).backward()
    torch.testing.assert_close(ours.encoder.net.weight_hh_l0.grad, other.encoder.weight_hh_l0.grad)
    torch.testing.assert_close(ours.decoder.net.weight_ih_l0.grad, other.decoder.weight_ih_l0.grad)


def by_the_book(
    model, source_1S: torch.Tensor, beams: int, length_penalty: float
) -> tuple[tuple[int, ...], float]:
    """A simple beam search: lists of beginnings, each with its log probability."""

    def rank(beginning) -> float:
        return beginning[1] / max(len(beginning[0]), 1) ** length_penalty

    limit = 2 * source_1S.shape[1] + 10
    kept: list[tuple[tuple[int, ...], float, bool]] = [((), 0.0, False)]
    while not all(ended for *_, ended in kept):
        found = []
        for tokens, total, ended in kept:
            if ended:
                found.append((tokens, total, ended))
                continue
            logits_1TV = model(source_1S, None, torch.tensor([[*tokens, EOS]]))
            for symbol, log in enumerate(logits_1TV[0, -1].log_softmax(-1).tolist()):
                if symbol not in (PAD, BOS):
                    longer = (*tokens, symbol)
                    found.append((longer, total + log, symbol == EOS or len(longer) >= limit))
        kept = sorted(found, key=rank, reverse=True)[:beams]
    best = max(kept, key=rank)
    return best[:2]


PENALTIES = st.sampled_from([0.0, 0.7, 1.0])


@given(st.sampled_from(["none", "additive"]), st.integers(1, 5), PENALTIES, st.integers(0, 10_000))
@example("none", 2, 1.0, 0)  # tells the size of ended outputs
@examples(max_examples=15)
def test_beam_search_equals_a_simple_implementation(score, beams, length_penalty, seed):
    """An ended sequence stays once and displaces no other. One beam is greedy search."""
    model = net(score, "gru", 1, seed, sharp=2)
    with torch.no_grad():
        model.decoder.head.bias[EOS] += 2
    source_BS, lengths_B = batch(3, 2, seed=seed)
    written = beam_search(model, source_BS, lengths_B, beams, length_penalty)
    for row, length in enumerate(lengths_B.tolist()):
        alone_1S = source_BS[row : row + 1, :length]
        with torch.no_grad():
            tokens, total = by_the_book(model, alone_1S, beams, length_penalty)
        found = [token for token in written.tokens_BKT[row, 0].tolist() if token != PAD]
        assert found == list(tokens)
        assert written.log_probability_BK[row, 0].item() == pytest.approx(total, rel=1e-4)
