"""Parts of imdbattn.nn work alone, as their docstrings say."""

import doctest
import importlib
import pkgutil

import pytest
import torch

from imdbattn import nn
from imdbattn.nn import sequence_mask
from tests.nets import SCORES

MODULES_OF_NN = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(nn.__path__, "imdbattn.nn.")
]
WIDTH, LENGTH = 8, 7


def test_the_examples_of_docstrings_run():
    ran = 0
    for module in (nn, *MODULES_OF_NN):
        # without names of the module
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs={}):
            results = doctest.DocTestRunner().run(test)
            assert results.failed == 0, test.name
            ran += results.attempted
    assert ran > 3


def test_padding_may_be_before_the_words():
    """tests/nn/test_padding_invariance.py has padding after them."""
    torch.manual_seed(0)
    f, x_BTD = nn.SelfAttention(WIDTH, 2).double(), torch.randn(2, LENGTH, WIDTH).double()
    mask_BT = sequence_mask(torch.tensor([3, LENGTH]), LENGTH).flip(1)
    assert nn.WordPositions.of(mask_BT).positions_BT[0, -3:].tolist() == [0, 1, 2]
    together = f(x_BTD, nn.WordPositions.of(mask_BT))[0, -3:]
    alone = f(x_BTD[:1, -3:], nn.WordPositions.of(mask_BT[:1, -3:]))[0]
    torch.testing.assert_close(together, alone)


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
