"""The layers are the exercise's formulas, term by term."""

import torch

from imdbattn.nn.attention import padding_mask
from imdbattn.nn.layers import PlainLayer, ResidualLayer

MASK = padding_mask(torch.tensor([5, 2]), 5)


def g(layer, x):
    return torch.relu(x @ layer.g[0].weight.T + layer.g[0].bias)


def test_plain_is_g_of_f_of_x():
    torch.manual_seed(0)
    layer, x = PlainLayer(4), torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x, MASK), g(layer, layer.f(x, MASK)))


def test_residual_has_raw_x_on_the_skip_and_the_norm_only_on_the_way_into_f():
    torch.manual_seed(0)
    layer, x = ResidualLayer(4), 3 + 2 * torch.randn(2, 5, 4)
    torch.nn.init.normal_(layer.norm.weight)
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + layer.norm.eps).sqrt()
    normed = normed * layer.norm.weight + layer.norm.bias
    torch.testing.assert_close(layer(x, MASK), g(layer, x + layer.f(normed, MASK)))


def test_self_attention_is_the_softmax_over_keys_of_scaled_products():
    torch.manual_seed(0)
    f, x = PlainLayer(4).f, torch.randn(1, 3, 4)
    query, key, value = (part(x)[0] for part in (f.query, f.key, f.value))
    weights = (query @ key.T / 2).softmax(dim=1)  # each row, one query, sums to 1
    torch.testing.assert_close(f(x, padding_mask(torch.tensor([3]), 3))[0], weights @ value)


def test_all_layers_are_trained():
    """The layers of a stack are registered: a Python list of them would leave them untrained."""
    from torch import nn

    from imdbattn.nn.classifier import Classifier
    from imdbattn.nn.embedding import Embedding
    from imdbattn.nn.pooling import MeanPooling
    from imdbattn.nn.positions import NoPositions

    vectors = torch.randn(9, 4)
    model = Classifier(Embedding(vectors, torch.zeros(4), torch.ones(4)), 2, NoPositions, ResidualLayer, MeanPooling, 3)
    model(torch.randint(3, 9, (2, 5)), torch.tensor([5, 2])).sum().backward()
    for layer in model.layers:
        assert all(parameter.grad is not None for parameter in layer.parameters())
    assert len(nn.utils.parameters_to_vector(model.layers.parameters())) == 3 * (4 * (16 + 4) + 8)
