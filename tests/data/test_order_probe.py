"""Labels of the order probe depend on word order alone, and need a model that reads it."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.data.sources import order_probe
from imdbattn.data.sources.order_probe import SLOTS, generate
from imdbattn.data.tokenizer import FIRST_WORD, RULES, Tokenizer
from imdbattn.data.word_vectors import read_wheel
from imdbattn.runs.fit import fit

WORDS = {word for slot in SLOTS for choice in slot for word in choice.split()}
WORDS |= {"did", "not", "that", "would"}
EVEN = st.integers(1, 150).map(lambda half: 2 * half)


def bag(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.split()))


@given(
    st.integers(0, 2**32 - 1),
    st.fixed_dictionaries({"train": EVEN, "validation": EVEN, "test": EVEN}),
)
def test_every_bag_of_words_occurs_once_with_each_label_and_in_one_split_only(seed, sizes):
    splits = generate(seed, **sizes)
    assert {name: len(split) for name, split in splits.items()} == sizes
    everywhere: set[tuple[str, ...]] = set()
    for split in splits.values():
        assert len(set(split.texts)) == len(split)
        labeled = list(zip(split.texts, split.labels, strict=True))
        by_label = [Counter(bag(text) for text, of in labeled if of == label) for label in (0, 1)]
        assert by_label[0] == by_label[1]
        assert set(by_label[0].values()) == {1}
        assert not everywhere & set(by_label[0])
        everywhere |= set(by_label[0])


def test_the_reviews_of_a_seed_have_not_changed():
    """Raise order_probe.VERSION when this changes, so that caches don't serve the old sentences."""
    splits = generate(1, train=200, test=100)
    texts = "\n".join(text for split in splits.values() for text in split.texts)
    checksum = hashlib.sha256(texts.encode()).hexdigest()[:12]
    assert (order_probe.VERSION, checksum) == (1, "33f461933414")


def test_every_word_has_a_vector_and_every_tokenizer_finds_the_same_words():
    words, _ = read_wheel()
    assert set(words) >= WORDS
    words = sorted(WORDS)
    texts = generate(1, train=200)["train"].texts
    for name in set(RULES) - {"torchtext", "characters"}:
        found = Tokenizer(name, words).encode(texts)
        assert [words[id - FIRST_WORD] for id in found.ids] == " ".join(texts).split()
        assert np.diff(found.offsets).tolist() == [len(text.split()) for text in texts]


@pytest.fixture
def probe(settings, small, tmp_path):
    """probe("residual"): metrics of a rung trained on the probe, with random vectors."""
    rng = np.random.default_rng(0)
    vectors = {word: " ".join(map(str, rng.normal(size=20))) for word in sorted(WORDS)}
    lines = [f"{word} {numbers}\n" for word, numbers in vectors.items()]
    (tmp_path / "vectors.txt").write_text("".join(lines))
    own = [word for word in small if not word.startswith(("data.path", "data.batch_tokens"))]
    own += ["data=order_probe", f"data.vectors.path={tmp_path}/vectors.txt", "data.vectors.dim=20"]
    own += ["data.probe.validation=200", "data.probe.test=400", "optim.lr=0.003", "patience=null"]

    def train(rung: str, *overrides: str) -> dict:
        return fit(settings(*own, f"model={rung}", *overrides), tmp_path / rung)

    return train


@pytest.mark.parametrize("rung", ["mean", "residual"])
def test_without_positions_a_rung_is_right_on_exactly_half(probe, rung):
    assert probe(rung, "trainer.max_epochs=1", "data.probe.train=1000")["test_accuracy"] == 0.5


@pytest.mark.slow
def test_with_positions_a_rung_learns_the_order(probe):
    found = probe("residual_pe", "model.net.positions.scale=1", "trainer.max_epochs=3")
    assert found["test_accuracy"] > 0.9
