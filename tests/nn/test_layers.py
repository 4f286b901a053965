"""The layers are the exercise's formulas, term by term."""

import pytest
import torch

from imdbattn.nn.beyond.context import Convolution
from imdbattn.nn.ladder import PlainLayer, ResidualLayer, WordPositions
from imdbattn.nn.scores import sequence_mask
from imdbattn.nn.watch import collect_attention
from tests.nets import batch, net

MASK = sequence_mask(torch.tensor([5, 2]), 5)
TWO = WordPositions(MASK, torch.arange(5).expand(2, -1))  # reviews of five and of two words


def g(layer, x):
    return torch.relu(x @ layer.g[0].weight.T + layer.g[0].bias)


def test_plain_is_g_of_f_of_x():
    torch.manual_seed(0)
    layer, x = PlainLayer(4), torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x, TWO), g(layer, layer.f(x, TWO)))
    assert not layer.skip, "rollout would count x itself"
    assert PlainLayer(4, dropout=1.0)(x, TWO).eq(0).all()


def test_residual_has_raw_x_on_the_skip_and_the_norm_only_on_the_way_into_f():
    torch.manual_seed(0)
    layer, x = ResidualLayer(4), 3 + 2 * torch.randn(2, 5, 4)
    torch.nn.init.normal_(layer.norm.weight)
    normed = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, unbiased=False, keepdim=True) + layer.norm.eps
    ).sqrt()
    normed = normed * layer.norm.weight + layer.norm.bias
    torch.testing.assert_close(layer(x, TWO), g(layer, x + layer.f(normed, TWO)))


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_convolution_adds_a_linear_function_of_each_word_and_its_neighbors(kernel):
    """x + ReLU(bias + the sum over neighbors of weight times x); missing neighbors add nothing."""
    torch.manual_seed(0)
    layer, x = Convolution(4, kernel), torch.randn(2, 5, 4)
    weight, bias = layer.conv.weight, layer.conv.bias
    found = layer(x, TWO)
    for review, length in enumerate((5, 2)):
        for place in range(length):
            total = bias
            for step in range(kernel):
                neighbor = place + step - kernel // 2
                if 0 <= neighbor < length:
                    total = total + weight[:, :, step] @ x[review, neighbor]
            torch.testing.assert_close(found[review, place], x[review, place] + torch.relu(total))


def test_uniform_is_the_residual_rung_with_equal_weights_before_and_after_training(settings):
    model = net(settings, "uniform")
    layer, x = model.layers[0], torch.randn(2, 5, 10)
    with collect_attention([model]) as (weights,):
        output = layer(x, TWO)
    expected = (MASK / MASK.sum(1, keepdim=True))[:, None, None].expand(2, 1, 5, 5)
    torch.testing.assert_close(weights[0], expected)
    means = torch.stack(
        [layer.f.value(layer.norm(x[n, : MASK[n].sum()])).mean(0) for n in range(2)]
    )
    torch.testing.assert_close(output, g(layer, x + means[:, None]))
    model(batch(model, [[3, 4, 5], [6]])).sum().backward()
    for part in (layer.f.query, layer.f.key):
        assert part.weight.grad is not None, "DDP requires a gradient of every parameter"
        assert not part.weight.grad.any()
