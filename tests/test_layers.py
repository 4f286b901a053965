"""The layers are the exercise's formulas, term by term."""

import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.explain.watch import watch
from imdbattn.nn.beyond.context import Convolution
from imdbattn.nn.ladder import Classifier, MeanPooling, NoPositions, PlainLayer, ResidualLayer, Words
from imdbattn.nn.scores import padding_mask
from imdbattn.nn.vectors import Embedding

from .nets import batch, net

MASK = padding_mask(torch.tensor([5, 2]), 5)
TWO = Words(MASK, torch.arange(5).expand(2, -1))  # reviews of five and of two words


def g(layer, x):
    return torch.relu(x @ layer.g[0].weight.T + layer.g[0].bias)


def test_plain_is_g_of_f_of_x():
    torch.manual_seed(0)
    layer, x = PlainLayer(4), torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x, TWO), g(layer, layer.f(x, TWO)))


def test_residual_has_raw_x_on_the_skip_and_the_norm_only_on_the_way_into_f():
    torch.manual_seed(0)
    layer, x = ResidualLayer(4), 3 + 2 * torch.randn(2, 5, 4)
    torch.nn.init.normal_(layer.norm.weight)
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + layer.norm.eps).sqrt()
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
                neighbour = place + step - kernel // 2
                if 0 <= neighbour < length:
                    total = total + weight[:, :, step] @ x[review, neighbour]
            torch.testing.assert_close(found[review, place], x[review, place] + torch.relu(total))


def test_a_convolution_does_not_read_the_padding():
    torch.manual_seed(0)
    layer, x = Convolution(4, 3), torch.randn(2, 5, 4)
    other = torch.where(MASK[..., None], x, 100 * torch.randn(2, 5, 4))
    torch.testing.assert_close(layer(other, TWO)[MASK], layer(x, TWO)[MASK], atol=0, rtol=0)


@pytest.mark.parametrize("kernel", [2, 4, 0])
def test_a_kernel_of_even_width_is_refused(settings, kernel):
    with pytest.raises(UserError, match=rf"model\.convolution\.kernel={kernel} must be"):
        net(settings, "convolved", f"model.convolution.kernel={kernel}")


def test_all_layers_are_trained():
    """The layers of a stack are registered: a Python list of them would leave them untrained."""
    vectors = torch.randn(9, 4)
    embedding = Embedding(vectors, torch.zeros(4), torch.ones(4))
    model = Classifier(embedding, 2, positions=NoPositions, layer=ResidualLayer, pooling=MeanPooling, layers=3)
    model(batch(model, torch.randint(3, 9, (2, 5)).tolist())).sum().backward()
    for layer in model.layers:
        assert all(parameter.grad is not None for parameter in layer.parameters())
    assert len(torch.nn.utils.parameters_to_vector(model.layers.parameters())) == 3 * (4 * (16 + 4) + 8)


def test_uniform_is_the_residual_rung_with_equal_weights_before_and_after_training(settings):
    model = net(settings, "uniform")
    layer, x = model.layers[0], torch.randn(2, 5, 10)
    with watch(model) as weights:
        output = layer(x, TWO)
    expected = (MASK / MASK.sum(1, keepdim=True))[:, None, None].expand(2, 1, 5, 5)
    torch.testing.assert_close(weights[0], expected)
    means = torch.stack([layer.f.value(layer.norm(x[n, : MASK[n].sum()])).mean(0) for n in range(2)])
    torch.testing.assert_close(output, g(layer, x + means[:, None]))
    model(batch(model, [[3, 4, 5], [6]])).sum().backward()
    for part in (layer.f.query, layer.f.key):
        assert part.weight.grad is not None, "DDP requires a gradient of every parameter"
        assert not part.weight.grad.any()


def test_the_other_forms_of_attention_build_the_models_that_they_name(settings):
    layers = {"residual_heads": "ProjectedLayer", "residual_rope": "RotaryLayer", "residual_relative": "ResidualLayer"}
    for rung, name in layers.items():
        model = net(settings, rung)
        assert [type(layer).__name__ for layer in model.layers] == [name] * 3
        assert model.layers[0].f.heads == (5 if rung == "residual_heads" else 1)
        distances = "ClippedDistances" if rung == "residual_relative" else "NoneType"
        assert type(model.layers[0].f.distances).__name__ == distances
        assert isinstance(model.positions, NoPositions)
    model = net(settings, "label_query")
    assert (type(model.pooling).__name__, model.pooling.query_CD.shape, len(model.layers)) == (
        "LabelQueryPooling",
        (3, 10),
        0,
    )
