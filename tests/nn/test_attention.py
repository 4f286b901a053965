"""Our attention equals torch's, and gives the worked values of the exercise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from imdbattn.nn.beyond.attention import LabelHead, LabelQueryPooling, ProjectedAttention
from imdbattn.nn.ladder import Attention, SelfAttention, WordPositions
from imdbattn.nn.rollout import rollout
from imdbattn.nn.scores import Additive, Bilinear, Dot, ScaledDot, sequence_mask
from imdbattn.nn.watch import collect_attention
from tests.nets import SCORES


def formula(attention, query, key, value, *more):
    """softmax(score(q, k)) v, without the faster path."""
    return attention.attention_weights(query, key, value, *more) @ value


@pytest.mark.parametrize("score", [Dot(2, 2), Additive(2, 2, hidden=8)])
def test_attention_gives_the_worked_values_of_the_exercise(score):
    query, key = torch.ones(2, 1, 2), torch.ones(2, 10, 2)
    value = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    mask = sequence_mask(torch.tensor([2, 6]), 10)[:, None]
    weights = Attention(score).attention_weights(query, key, value, mask)
    for output in (Attention(score)(query, key, value, mask), weights @ value):
        torch.testing.assert_close(output, torch.tensor([[[2.0, 3, 4, 5]], [[10.0, 11, 12, 13]]]))
    expected = torch.zeros(2, 1, 10)
    expected[0, 0, :2], expected[1, 0, :6] = 1 / 2, 1 / 6
    torch.testing.assert_close(weights, expected)


SIZES = (st.integers(1, 4), st.integers(1, 7), st.integers(1, 9), st.sampled_from([4, 8]))


@given(st.integers(0, 10_000), *SIZES)
def test_scaled_dot_equals_the_kernel_of_torch(seed, batch, queries, keys, width):
    torch.manual_seed(seed)
    q, k = torch.randn(batch, queries, width), torch.randn(batch, keys, width)
    v = torch.randn(batch, keys, 3)
    mask = sequence_mask(torch.randint(1, keys + 1, (batch,)), keys)[:, None]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    attention = Attention(ScaledDot(width, width))
    torch.testing.assert_close(attention(q, k, v, mask), expected)
    torch.testing.assert_close(formula(attention, q, k, v, mask), expected)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("more", [0, 2])
def test_products_of_additional_columns_are_added_to_the_scores(score, more):
    torch.manual_seed(0)
    attention = Attention(score(6, 6))
    q, k, v = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6)
    mask = sequence_mask(torch.tensor([5, 2]), 5)[:, None, None]
    # keys shared by all heads
    more_query, more_key = torch.randn(2, 3, 4, more), torch.randn(2, 1, 5, more)
    added = torch.einsum("bhqw,bkw->bhqk", more_query, more_key.squeeze(1))
    expected = (attention.score(q, k) + added).masked_fill(~mask, -torch.inf).softmax(-1)
    added = ((more_query, more_key),) if more else ()
    torch.testing.assert_close(attention(q, k, v, mask, *added), expected @ v)
    torch.testing.assert_close(attention.attention_weights(q, k, v, mask, *added), expected)


def test_scores_equal_their_formulas():
    torch.manual_seed(0)
    q, k = torch.randn(3, 4), torch.randn(5, 4)
    bilinear, additive = Bilinear(4, 4), Additive(4, 4, hidden=6)
    assert additive.v.weight.shape == (1, 6)
    for i in range(3):
        for j in range(5):
            torch.testing.assert_close(Dot(4, 4)(q, k)[i, j], q[i] @ k[j])
            torch.testing.assert_close(ScaledDot(4, 4)(q, k)[i, j], q[i] @ k[j] / 2)
            torch.testing.assert_close(bilinear(q, k)[i, j], q[i] @ bilinear.weight.weight.T @ k[j])
            hidden = torch.tanh(additive.query.weight @ q[i] + additive.key.weight @ k[j])
            torch.testing.assert_close(additive(q, k)[i, j], additive.v.weight[0] @ hidden)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("kind", [SelfAttention, ProjectedAttention])
def test_self_attention_equals_multihead_attention_with_copied_weights(kind, heads):
    """Without an output projection, W_O is the identity."""
    torch.manual_seed(0)
    ours, theirs = kind(8, heads=heads), nn.MultiheadAttention(8, heads, batch_first=True)
    with torch.no_grad():
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(torch.eye(8))
        theirs.out_proj.bias.zero_()
    if kind is ProjectedAttention:
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, mask = torch.randn(3, 6, 8), sequence_mask(torch.tensor([6, 3, 1]), 6)
    expected, expected_weights = theirs(x, x, x, key_padding_mask=~mask, average_attn_weights=False)
    with collect_attention([ours]) as (weights,):
        torch.testing.assert_close(ours(x, WordPositions.of(mask)), expected)
    torch.testing.assert_close(weights[0], expected_weights)


def test_each_label_reads_with_its_own_query():
    torch.manual_seed(0)
    pooling, head = LabelQueryPooling(4, classes=3), LabelHead(4, 3)
    nn.init.normal_(pooling.query_CD)
    x, mask = torch.randn(2, 5, 4), WordPositions.of(sequence_mask(torch.tensor([5, 2]), 5))
    with collect_attention([pooling]) as (weights,):
        logits = head(pooling(x, mask))
    for row, length in enumerate((5, 2)):
        for label, query in enumerate(pooling.query_CD):
            expected = (x[row, :length] @ query / 2).softmax(0)
            torch.testing.assert_close(weights[0][row, label, 0, :length], expected.detach())
            z = expected @ x[row, :length]
            torch.testing.assert_close(
                logits[row, label], head.weight[label] @ z + head.bias[label]
            )


@pytest.mark.parametrize("score", SCORES)
def test_a_query_without_keys_gives_zeros_and_finite_gradients(score):
    torch.manual_seed(0)
    attention = Attention(score(4, 4))
    mask = sequence_mask(torch.tensor([0, 2]), 3)[:, None]
    for call in (attention, lambda *inputs: formula(attention, *inputs)):
        q, k, v = (torch.randn(2, 3, 4, requires_grad=True) for _ in range(3))
        output = call(q, k, v, mask)
        assert output[0].eq(0).all()
        output.sum().backward()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_rollout_uses_the_skip_connection_of_each_layer():
    """By hand: the pooling reads position 0; the layer with the skip keeps half there and half
    at 1. The layer below, without a skip, reads position 2 at 0, and 0 at 1.
    """
    below = torch.tensor([[[[0.0, 0, 1], [1, 0, 0], [0, 1, 0]]]])
    above = torch.tensor([[[[0.0, 1, 0], [0, 1, 0], [0, 0, 1]]]])
    read_first = torch.tensor([[[[1.0, 0, 0]]]])
    torch.testing.assert_close(
        rollout([below, above, read_first], [False, True]), torch.tensor([[0.5, 0, 0.5]])
    )
