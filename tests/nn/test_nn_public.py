"""Parts of imdbattn.nn work alone, on sequences that are padded on either side."""

import doctest
import importlib
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imdbattn import nn
from imdbattn.nn import sequence_mask
from imdbattn.nn.beyond import attention, context

MODULES_OF_NN = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(nn.__path__, "imdbattn.nn.")
]
SCORES = (nn.ScaledDot, nn.Dot, nn.Bilinear, nn.Additive)
WIDTH, LENGTH = 8, 7
MODULES = {
    **{
        f"SelfAttention-{score.__name__}": lambda s=score: nn.SelfAttention(WIDTH, 2, score=s)
        for score in SCORES
    },
    "SelfAttention-Uniform": lambda: nn.SelfAttention(WIDTH, 2, score=attention.Uniform),
    "SelfAttention-distances": lambda: nn.SelfAttention(WIDTH, 2, distances=attention.Distances),
    "ProjectedLayer": lambda: attention.ProjectedLayer(WIDTH, heads=4),
    "RotaryLayer": lambda: attention.RotaryLayer(WIDTH),
    "LabelQueryPooling": lambda: attention.LabelQueryPooling(WIDTH, classes=3),
    "PlainLayer": lambda: nn.PlainLayer(WIDTH, heads=4),
    "ResidualLayer": lambda: nn.ResidualLayer(WIDTH),
    "SinusoidalPositions": lambda: nn.SinusoidalPositions(WIDTH),
    "LearnedPositions": lambda: nn.LearnedPositions(WIDTH, length=20),
    "Convolution": lambda: context.Convolution(WIDTH),
    "MeanPooling": lambda: nn.MeanPooling(WIDTH),
    "LearnedQueryPooling": lambda: nn.LearnedQueryPooling(WIDTH, nn.Additive),
    "TextQueryPooling": lambda: nn.TextQueryPooling(WIDTH),
    "ClsPooling": lambda: Cls(WIDTH),
}


class Cls(nn.ClsPooling):
    """With its two steps in one."""

    def forward(self, x_BTD, mask):
        return super().forward(*self.prepend(x_BTD, mask))


def made(name: str) -> torch.nn.Module:
    """A module in evaluation mode, in float64 and without zeros that could hide a mistake."""
    module = MODULES[name]().double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def test_the_examples_of_docstrings_run():
    ran = 0
    for module in (nn, *MODULES_OF_NN):
        # without names of the module
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs={}):
            results = doctest.DocTestRunner().run(test)
            assert results.failed == 0, test.name
            ran += results.attempted
    assert ran > 3


@pytest.mark.parametrize("name", MODULES)
def test_a_sequence_is_the_same_alone_and_padded_on_either_side(name):
    """A review scores the same alone and in a batch."""

    @given(
        st.integers(0, 10_000),
        st.lists(st.integers(1, LENGTH), min_size=1, max_size=4),
        st.booleans(),
    )
    @settings(max_examples=6)
    def holds(seed, lengths, left):
        torch.manual_seed(seed)
        module, x_BTD = made(name), torch.randn(len(lengths), LENGTH, WIDTH, dtype=torch.float64)
        mask_BT = sequence_mask(torch.tensor(lengths), LENGTH)
        mask_BT = mask_BT.flip(1) if left else mask_BT
        together = module(x_BTD, nn.WordPositions.of(mask_BT))
        for x_TD, mask_T, found in zip(x_BTD, mask_BT, together, strict=True):
            (alone,) = module(x_TD[mask_T][None], nn.WordPositions.of(mask_T[mask_T][None]))
            torch.testing.assert_close(found[mask_T] if len(found) == LENGTH else found, alone)

    holds()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_attention_without_a_mask_reads_all_keys(score, lead):
    torch.manual_seed(0)
    attention = nn.Attention(score(4, 4))
    q, k, v = (torch.randn(*lead, rows, 4) for rows in (5, 6, 6))
    expected = attention(q, k, v, torch.ones(6, dtype=torch.bool).expand(*lead, 1, 6))
    torch.testing.assert_close(attention(q, k, v), expected)
    torch.testing.assert_close(attention.attention_weights(q, k, v) @ v, expected)


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("method", ["compare", "forward"])
def test_a_score_derived_from_a_product_uses_its_own_compare_method(method, inherited):
    """The faster path knows only products: it would train another score than is drawn.

    inherited: the method is of another base class.
    """
    torch.manual_seed(0)
    own = {method: lambda self, query, key: (query @ key.transpose(-2, -1)) ** 2}
    squared = type("Squared", (nn.ScaledDot,), own)
    if inherited:
        squared = type("Inherits", (type("Other", (), own), nn.ScaledDot), {})
    f, x_BTD = nn.SelfAttention(WIDTH, 2, score=squared), torch.randn(2, LENGTH, WIDTH)
    q, k, v = (
        part(x_BTD).unflatten(-1, (2, -1)).transpose(1, 2) for part in (f.query, f.key, f.value)
    )
    expected = (((q @ k.transpose(2, 3)) ** 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
    everywhere = nn.WordPositions.of(torch.ones(2, LENGTH, dtype=torch.bool))
    torch.testing.assert_close(f(x_BTD, everywhere), expected)
