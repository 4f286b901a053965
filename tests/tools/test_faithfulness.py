"""imdbattn.faithfulness: attributions, erasure and known rationales have the right values."""

from collections import Counter
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import imdbattn
from imdbattn.data.phrases import with_words_before
from imdbattn.data.sources.order_probe import PAIRS, pair
from imdbattn.errors import UserError
from imdbattn.nn.ladder import SelfAttention
from imdbattn.tools.faithfulness import attributions, page
from imdbattn.tools.faithfulness.attributions import (
    ATTRIBUTIONS,
    RAW,
    WITH_VALUES,
    applicable,
    change_from_zero,
    predicted_labels,
)
from imdbattn.tools.faithfulness.edited_pairs import read_edited_pairs
from imdbattn.tools.faithfulness.erasure import (
    average_precision,
    erase,
    extremes,
    keep_words,
    log_odds,
    loss_without,
    ranks,
    removed_words,
    search_removals,
    true_words,
    words_of,
)
from imdbattn.tools.faithfulness.experiment import randomized_nets
from imdbattn.tools.faithfulness.summary import MIN_REVIEWS, estimated
from tests import nets
from tests.made_up import claim, made_up_faithfulness
from tests.marks import slow

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
REVIEWS = [[5, 6, 7, 8, 9], [3, 4], [], [10], [11, 12, 13, 14, 15, 16, 17, 18]]


def attribute(name: str, net: torch.nn.Module, batch) -> torch.Tensor:
    with torch.no_grad():
        return ATTRIBUTIONS[name][1](net, batch, predicted_labels(net, batch))


@given(st.integers(0, 1000), st.sampled_from([0.2, 0.5, 0.8]), st.integers(0, 2))
@hypothesis_settings(max_examples=20, deadline=None)
def test_words_are_removed_as_by_word_dropout(seed, dropped, before):
    reviews = with_words_before(nets.reviews(seed, count=6, longest=9), before + 1)
    whole = nets.batch_of(reviews)
    thinned = nets.batch_of(reviews, word_dropout=dropped, seed=seed)
    left_BT = torch.zeros(whole.tokens_BT.shape, dtype=torch.bool)
    left_BT.scatter_(1, thinned.positions_BT, words_of(thinned))
    # position 0 is also that of padding
    left_BT[:, 0] = ((thinned.positions_BT == 0) & words_of(thinned)).any(1)
    for mine, expected in zip(keep_words(whole, left_BT), thinned, strict=True):
        assert mine is expected is None or torch.as_tensor(mine == expected).all()


@pytest.mark.parametrize(
    "rung", [slow("learned_query"), slow("base"), "residual_pe", "residual_cls", slow("log_counts")]
)
def test_attributions_do_not_depend_on_other_reviews_or_padding(settings, rung):
    net = nets.net(settings, rung)
    together = nets.batch(net, REVIEWS, padding=2)
    for name in applicable(net):
        attributions_BT = attribute(name, net, together)
        assert (attributions_BT[~words_of(together)] == 0).all()
        lost = erase(net, together, ranks(attributions_BT, together), SHARES)
        assert all(lost_BS[REVIEWS.index([])].abs().max() < 1e-6 for lost_BS in lost)
        for number, review in enumerate(REVIEWS):
            if name != "random":
                alone_T = attribute(name, net, nets.batch(net, [review]))[0, : len(review)]
                # outputs that hardly move have distances with large relative rounding errors
                atol = 2e-4 if name.startswith("value_zeroing") else 1e-5
                found_T = attributions_BT[number, : len(review)]
                torch.testing.assert_close(found_T, alone_T, rtol=1e-4, atol=atol)


def test_attention_rollout_equals_the_shares_of_explain(settings, trained):
    for rung in ("learned_query", "residual_cls"):
        model = imdbattn.load(trained(rung)[0])
        text = "a good film of a dull story"
        predictor = model.predictor
        batch = predictor.batch_maker([text]).of_items(np.arange(1))
        shares = [share for *_, share in predictor.explain(text).words]
        assert attribute("rollout", predictor.net, batch)[0].tolist() == pytest.approx(
            shares, abs=1e-6
        )


def test_without_layers_attention_is_that_of_the_pooling_alone(settings):
    names = {
        rung: set(applicable(nets.net(settings, rung)))
        for rung in ("mean", "learned_query", "residual")
    }
    assert names["residual"] == set(ATTRIBUTIONS)
    of_layers = {"last_layer", "all_layers", "norms", "value_zeroing"}
    assert names["learned_query"] == set(ATTRIBUTIONS) - of_layers
    assert names["mean"] == set(ATTRIBUTIONS) - {*RAW, *WITH_VALUES}


class OwnAttention(SelfAttention):
    """Its values may be projected once more, which an attribution cannot know."""


def test_values_of_a_part_of_ones_own_are_not_used(settings):
    net = nets.net(settings, "residual")
    net.layers[0].f = OwnAttention(net.layers[0].f.query.in_features)
    assert not {*WITH_VALUES} & set(applicable(net))


class NamedArguments(SelfAttention):
    """Calls its attention with named arguments."""

    def forward(self, x_BTD, words):
        query, key, value = self.project(x_BTD, words)
        y_BHTd = self.attention(query=query, key=key, value=value, mask=words.key_mask_B11T)
        return y_BHTd.transpose(1, 2).flatten(2)


def test_a_part_of_ones_own_may_name_the_arguments_of_its_attention(settings):
    net = nets.net(settings, "residual")
    batch = nets.batch(net, REVIEWS[:2])
    expected = attribute("rollout", net, batch)
    net.layers[0].f.__class__ = NamedArguments
    torch.testing.assert_close(attribute("rollout", net, batch), expected)


@pytest.mark.parametrize("rung", ["learned_query", "residual_pe", slow("residual_cls")])
def test_integrated_gradients_sum_to_the_difference_of_outputs(settings, rung):
    net = nets.net(settings, rung)
    batch = nets.batch(net, REVIEWS[:2])
    change_B = change_from_zero(net, batch, predicted_labels(net, batch))
    sum_B = attribute("integrated_gradients", net, batch).sum(1)
    torch.testing.assert_close(sum_B, change_B, rtol=0.0201, atol=1e-5)
    assert (attribute("gradient", net, batch).sum(1) - change_B).abs().max() > 0.02


@pytest.mark.parametrize("rung", ["residual", "residual_heads"])
def test_norms_are_those_of_the_values_of_all_heads_after_w_o(settings, rung):
    net = nets.net(settings, rung, "model.net.layer.heads=2")
    first = attributions.observe(net, nets.batch(net, [REVIEWS[0]]))[0]
    vectors_QKHV = torch.einsum("hqk,hkv->qkhv", first.weights_BHQK[0], first.value_BHKV[0])
    vectors_QKD = vectors_QKHV.flatten(2)
    if rung == "residual_heads":
        vectors_QKD = vectors_QKD @ net.layers[0].f.output.weight.T
    for skips in (False, True):  # with the skip connection, a word adds itself
        own_QKD = skips * torch.eye(len(vectors_QKD))[..., None] * first.x_BKD[0]
        norms_QK = (vectors_QKD + own_QKD).norm(dim=-1)
        shares_QK = norms_QK / norms_QK.sum(1, keepdim=True)
        torch.testing.assert_close(attributions.norm_rows(first, skips=skips)[0], shares_QK)


def test_value_zeroing_measures_how_far_an_output_moves(settings):
    net = nets.net(settings, "residual")
    batch = nets.batch(net, [REVIEWS[0]])
    observed = attributions.observe(net, batch)[0]
    layer, moved = net.layers[0], []
    whole_D = layer(observed.x_BKD, observed.words)[0, 2]
    for word in range(5):
        with layer.f.value.register_forward_hook(
            lambda *a, word=word: a[2].index_fill(1, torch.tensor(word), 0)
        ):
            changed_D = layer(observed.x_BKD, observed.words)[0, 2]
        moved.append(1 - F.cosine_similarity(changed_D, whole_D, dim=0))
    moved_K = torch.stack(moved)
    found_K = attributions.zeroed_rows(observed)[0, 2]
    torch.testing.assert_close(found_K, moved_K / moved_K.sum(), rtol=1e-3, atol=1e-5)


def test_weights_are_randomized_from_the_output_downwards(settings):
    net = nets.net(settings, "residual_pe_cls", "model.net.layers=2")
    stages = randomized_nets(net, 0)
    assert list(stages) == ["output", "pooling", "layer 2", "layer 1"]
    again, weights = randomized_nets(net, 0)["layer 1"].state_dict(), stages["layer 1"].state_dict()
    assert all(again[name].equal(weights[name]) for name in weights)
    for number, other in enumerate(stages.values()):
        changed = {
            name.split(".")[0] + (f" {name.split('.')[1]}" if name.startswith("layers") else "")
            for (name, one), two in zip(net.named_parameters(), other.parameters(), strict=True)
            if not torch.equal(one, two)
        }
        assert changed == {"head", *["pooling", "layers 1", "layers 0"][:number]}


@pytest.mark.parametrize("rung", ["base", "residual_pe", "log_counts"])
def test_leave_one_out_is_the_change_when_a_word_is_removed(settings, rung):
    net = nets.net(settings, rung)
    batch = nets.batch(net, REVIEWS[:2])
    attributions_BT, label_B = attribute("leave_one_out", net, batch), predicted_labels(net, batch)
    for review, word in ((0, 0), (0, 3), (1, 1)):
        kept_BT = torch.ones(batch.tokens_BT.shape, dtype=torch.bool)
        kept_BT[review, word] = False
        with torch.no_grad():
            without = keep_words(batch, kept_BT)
            lost_B = log_odds(net(batch), label_B) - log_odds(net(without), label_B)
        assert attributions_BT[review, word].item() == pytest.approx(
            lost_B[review].item(), abs=1e-5
        )


def test_erasure_of_a_linear_bag_by_its_gradients_is_the_best_of_all_subsets(settings):
    """In a mean of vectors, gradient x input says whose removal matters most."""
    net = nets.net(settings, "mean", classes=2)
    for seed in range(8):
        review = np.random.default_rng(seed).integers(3, 60, 7).tolist()
        batch = nets.batch(net, [review])
        label = int(predicted_labels(net, batch))

        def probability(words, net=net, label=label) -> float:
            with torch.no_grad():
                return net(nets.batch(net, [list(words)])).double().softmax(1)[0, label].item()

        ranks_1T = ranks(attribute("gradient", net, batch), batch)
        found = [column.item() for column in erase(net, batch, ranks_1T, [3 / 7])]
        subsets = [probability(subset) for subset in combinations(review, 3)]
        others = [probability(subset) for subset in combinations(review, 4)]
        whole = probability(review)
        assert found == pytest.approx([whole - min(others), whole - max(subsets)], abs=1e-6)


def test_normalized_aopc_is_1_for_the_best_order_of_a_linear_bag_and_0_for_its_reverse(settings):
    net = nets.net(settings, "mean", classes=2)
    for seed in range(4):
        review = np.random.default_rng(seed).permutation(np.arange(3, 60))[:8]
        batch = nets.batch(net, [review.tolist()])
        low, high = (end_B.item() for end_B in extremes(net, batch, (1 / 8,), 1).values())
        gradients = attribute("gradient", net, batch)
        for sign, expected in ((1, 1), (-1, 0)):
            found = erase(net, batch, ranks(sign * gradients, batch), (1 / 8,))[0].item()
            assert (found - low) / (high - low) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rung", ["mean", slow("residual_pe")])
def test_the_search_finds_what_exhaustion_finds_on_eight_words(settings, rung):
    net = nets.net(settings, rung, classes=2)
    shares = (0.125, 0.25, 0.375, 0.5)
    for seed in range(6):
        batch = nets.batch(net, [np.random.default_rng(seed).integers(3, 60, 8).tolist()])
        low_B, high_B = extremes(net, batch, shares, 3).values()
        for sign, exact in ((-1, -low_B.item()), (1, high_B.item())):
            counts = Counter(removed_words(share, 8) for share in shares)
            with torch.no_grad():
                found = search_removals(partial(loss_without, net, batch, sign), 8, counts, 3)
            assert exact - 0.05 * (high_B - low_B).item() <= found <= exact + 1e-6, (seed, sign)


def test_erasure_removes_the_share_of_the_words_rounded_up_but_not_all():
    assert [removed_words(share, 45) for share in (0.01, 0.06, 0.6, 0.9)] == [1, 3, 27, 41]
    assert [removed_words(0.9, words) for words in (0, 1, 2)] == [0, 0, 1]
    assert removed_words(0.07, 100) == 7  # 0.07 * 100 is above 7 in floating point


@pytest.mark.parametrize("number", [0, 1, 123_456, PAIRS - 1])
def test_the_true_words_of_the_order_probe_are_not_and_its_verb(number):
    for text, front in zip(pair(number), ("would", "did"), strict=True):
        words = text.split()
        ids = {word: 3 + place for place, word in enumerate(dict.fromkeys(words))}
        reviews = [[ids[word] for word in words], [ids["did"]]]
        batch = nets.batch(SimpleNamespace(context=None), reviews)
        chosen = [words[place] for place in true_words(batch, ids["not"])[0].nonzero()[:, 0]]
        assert chosen == ["not", words[words.index("not") + 1]]
        assert words[words.index("not") - 1] == front


@given(st.integers(0, 10_000))
@hypothesis_settings(max_examples=25, deadline=None)
def test_average_precision_equals_that_of_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    true = draw.random((1, 12)) < 0.3
    true[0, 0] = True
    order = torch.from_numpy(draw.permutation(12)[None])
    own = average_precision(order, torch.from_numpy(true)).item()
    metrics = pytest.importorskip("sklearn.metrics")
    assert own == pytest.approx(metrics.average_precision_score(true[0], -order[0].numpy()))


def test_few_reviews_and_undefined_values_do_not_show_a_difference():
    numbers = partial(estimated, "base", "comprehensiveness", "rollout")
    value_NS = np.linspace(0.2, 0.4, 50)[:, None]
    (row,) = numbers(value_NS)
    assert row["p"] < 1e-9
    assert (row["reviews"], row["few"]) == (50, False)
    (without,) = numbers(np.concatenate([value_NS, [[np.nan]]]))
    assert without == row
    assert numbers(np.nan * value_NS) == []
    for one in (numbers(value_NS[:1]), numbers(0 * value_NS)):
        assert (one[0]["p"], one[0]["interval"]) == (1, None)
    assert [numbers(value_NS[:n])[0]["few"] for n in (MIN_REVIEWS - 1, MIN_REVIEWS)] == [
        True,
        False,
    ]


def test_only_pairs_whose_original_was_held_out_are_read(tmp_path):
    rows = ["Sentiment\tText\tbatch_id", "Negative\tA bad film.\t1", "Positive\tA good film.\t1"]
    rows += ["Positive\tTrained on.\t2", "Negative\tNot trained on.\t2"]
    rows += ["Positive\tHeld out.\t3", "Negative\tBoth of them.\t3"]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    held_out = ["A <br />good film", "held out", "both of them"]
    pairs = read_edited_pairs(tmp_path, ["neg", "pos"], held_out)
    assert pairs == [("A good film.", 1, "A bad film.", 0)]
    with pytest.raises(UserError, match="none of 3 originals is in this split"):
        read_edited_pairs(tmp_path / "pairs.tsv", ["neg", "pos"], ["another review"])
    with pytest.raises(UserError, match="does not begin with exactly one of bad, good"):
        read_edited_pairs(tmp_path, ["bad", "good"], ["A good film."])


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        ({"a": {"rollout": 0.1, "last_layer": -0.1}}, "yes: * better in 1 of 1 variants"),
        ({"a": {"rollout": -0.1}}, "no: * worse in 1 of 1 variants"),
        (
            {"a": {"rollout": 0.1, "gradient": 0.2}},
            "partly: * better in 1 of 1 variants; another attribution is"
            " better than attention in 1",
        ),
        (
            {"a": {"rollout": 0.1}, "b": {"last_layer": -0.1}, "c": {"rollout": 0.0}},
            "partly: * better in 1, worse in 1, undecided in 1 of 3 variants",
        ),
    ],
)
def test_the_answer_follows_from_the_claims(differences, answer):
    summary = made_up_faithfulness(tuple(differences))
    summary["claims"] = [
        claim(variant, "comprehensiveness", attribution, value)
        for variant, differing in differences.items()
        for attribution, value in differing.items()
    ]
    words = answer.replace("*", "compared with random words, attention is")
    assert page.headline(summary) == f"{page.QUESTION} {words}"
