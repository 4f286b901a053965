"""Pairs of the encoder-decoder are complete, and those held out are never trained on."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from imdbattn.data.pairs import Pairs, encoded, load_pairs, with_targets
from imdbattn.data.ragged import BatchMaker
from imdbattn.data.sources.pairs import find_pair_source
from imdbattn.data.sources.reverse import generate
from imdbattn.data.splits import Split, fingerprint
from imdbattn.data.symbols import EOS, MARKERS, UNK_SYMBOL, Vocabulary, split_text, symbols_of
from imdbattn.errors import UserError
from imdbattn.settings.keys import conf_dir

REVERSE = OmegaConf.load(conf_dir() / "data/reverse.yaml").data
TRANSLATION = OmegaConf.load(conf_dir() / "data/translation.yaml").data
LETTERS = Vocabulary([*MARKERS, *"ABCDE"])
WORDS = st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20)


def strings(**changes) -> DictConfig:
    return OmegaConf.merge(REVERSE, {"train": 300, "validation": 40, "test": 60} | changes)


def sentences(path, **changes) -> DictConfig:
    return OmegaConf.merge(TRANSLATION, {"path": str(path)} | changes)


def as_split(pairs: list[tuple[list[str], list[str]]]) -> Pairs:
    sources, targets = ([" ".join(pair[side]) for pair in pairs] for side in (0, 1))
    split = Split(sources, [[target] for target in targets], np.arange(len(pairs)))
    return encoded(split, LETTERS, LETTERS)


@pytest.fixture
def file(tmp_path):
    """file("a\\tb\\n"): a path to a file with that content."""

    def write(content: str | bytes, name: str = "pairs.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def many(count: int = 200) -> str:
    """A file of `count` pairs with different sources."""
    return "".join(f"I see number {n}.\tJe vois le numéro {n}.\tCC-BY\n" for n in range(count))


def short(count: int) -> str:
    """The same with two words a side, as an editor of Windows writes it, with blank lines."""
    return "\ufeff" + "".join(f"\r\n{n} !\tn {n}\r\n" for n in range(count))


def test_a_word_spelled_like_a_marker_is_unknown_and_ends_nothing(file):
    vocabulary = Vocabulary.count([["<eos>", "a", "<pad>"]] * 5)
    assert vocabulary.symbols == [*MARKERS, "a"]
    assert vocabulary.encode(["a", *MARKERS, "b"]) == [4, *[UNK_SYMBOL] * 5]
    corpus = load_pairs(sentences(file(many().replace("see", "<eos>").replace("vois", "<pad>"))))
    assert (corpus.splits["train"].source.ids == UNK_SYMBOL).sum() >= len(corpus.splits["train"])
    assert all((batch_of(corpus.splits["train"], n).target_BT == EOS).sum() == 1 for n in range(10))


def batch_of(pairs: Pairs, *index: int):
    return BatchMaker(pairs).of_items(np.array(index, dtype=np.int64))


@given(PAIRS, st.data())
def test_a_pair_is_the_same_in_any_batch_with_one_end_symbol_and_padding_after_it(pairs, data):
    split = as_split(pairs)
    index = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=8))
    batch = batch_of(split, *index)
    for place_in_batch, n in enumerate(index):
        source, target = pairs[n]
        s, t = batch.source_lengths_B[place_in_batch], batch.target_lengths_B[place_in_batch]
        assert batch.source_BS[place_in_batch, :s].tolist() == LETTERS.encode(source)
        assert batch.target_BT[place_in_batch, :t].tolist() == [*LETTERS.encode(target), EOS]
        assert not batch.source_BS[place_in_batch, s:].any()
        assert not batch.target_BT[place_in_batch, t:].any()
    assert batch.items_B.tolist() == index
    assert torch.equal(batch.lengths_B, batch.source_lengths_B + batch.target_lengths_B)
    assert batch.global_count == len(index)
    assert batch.global_symbols == int(batch.target_lengths_B.sum())
    assert {tensor.dtype for tensor in batch[:6]} == {torch.int64}
    lengths = set(batch.source_lengths_B.tolist())
    assert batch.has_padding == (len(lengths) > 1), "without lengths a model would read padding"
    assert (batch.lengths_if_padded_B is None) == (len(lengths) < 2)


def test_the_processes_together_have_the_pairs_of_a_batch_and_one_without_pairs_packs_nothing():
    pairs = as_split([(["A", "B"], ["C"]), (["A"], ["B", "C"])])
    whole = batch_of(pairs, 0, 1)
    parts = [BatchMaker(pairs, rank=rank, ranks=3).of_items(np.arange(2)) for rank in range(3)]
    for name in ("source_BS", "source_lengths_B", "target_BT", "target_lengths_B", "items_B"):
        assert torch.cat([getattr(part, name) for part in parts]).equal(getattr(whole, name))
    assert {int(part.global_symbols) for part in parts} == {int(whole.global_symbols)}
    assert [part.lengths_if_padded_B is None for part in parts] == [False, False, True]


SIZES = {split: st.integers(1, 60) for split in ("train", "validation", "test")}
SOME = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**32), "letters": st.integers(2, 26), **SIZES}
)
BOUNDS = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda pair: tuple(sorted(pair)))


def generated(**wanted):
    """The splits, or None where there are too few strings."""
    try:
        return generate(**wanted)
    except UserError:
        return None


@given(SOME, BOUNDS, BOUNDS)
def test_no_string_occurs_twice_and_each_has_the_given_letters_and_length(
    some, lengths, test_lengths
):
    splits = generated(**some, lengths=lengths, test_lengths=test_lengths)
    if splits is None:
        return
    everything = [string for split in splits.values() for string in split]
    assert len(everything) == len(set(everything))
    alphabet = set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: some["letters"]])
    for name, split in splits.items():
        assert len(split) == some[name]
        shortest, longest = test_lengths if name == "test" else lengths
        for length, count in Counter(map(len, split)).items():
            assert shortest <= length <= longest
            assert name == "train" or 4 * count <= some["letters"] ** length
        assert all(set(string) <= alphabet for string in split)


@given(
    SOME,
    BOUNDS,
    BOUNDS,
    st.fixed_dictionaries({"train": SIZES["train"], "validation": SIZES["validation"]}),
)
def test_the_test_strings_depend_only_on_their_own_settings(some, lengths, other, sizes):
    one = generated(**some, lengths=lengths, test_lengths=(5, 9))
    two = generated(**some | sizes, lengths=other, test_lengths=(5, 9))
    assert one is None or two is None or one["test"] == two["test"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I'm OK.", "i'm ok ."),
        ("C’est à\u202ftoi\u00a0!", "c'est à toi !"),
        ("  Wait…  what,no?! ", "wait … what , no ? !"),
        ("«\u00a0Où ?\u00a0» dit-il", "« où ? » dit-il"),
        ('She said: "Go; now."', 'she said : " go ; now . "'),
        ("e\u0301te\u0301", "été"),
    ],
)
def test_a_text_becomes_words_and_punctuation(text, words):
    assert symbols_of(text, True, "words") == words
    assert split_text(text, TRANSLATION) == words.split()


SOURCES = st.lists(st.integers(0, 5000), min_size=120, max_size=200, unique=True)


@given(SOURCES, st.randoms())
@examples(max_examples=15)
def test_a_source_is_in_the_same_split_whatever_other_pairs_there_are(
    tmp_path_factory, numbers, rng
):
    def split_of(some, copies):
        path = tmp_path_factory.mktemp("pairs") / "p.txt"
        path.write_text(
            "".join(f"Number {n}!\tNuméro {n} {copy}.\n" for copy in range(copies) for n in some)
        )
        corpus = load_pairs(sentences(path, min_frequency=1))
        return {text: name for name, split in corpus.splits.items() for text in split.texts}

    everywhere, some = split_of(numbers, 2), split_of(rng.sample(numbers, 110), 1)
    assert len(everywhere) == len(numbers)
    assert all(everywhere[text] == name for text, name in some.items())


def test_training_keeps_every_pair_and_a_held_out_source_all_its_targets(file):
    more = "".join(
        f"I SEE number {n} .\tVu : {n} !\nI see number {n}.\tJe vois le numéro {n}.\n"
        for n in range(200)
    )
    corpus = load_pairs(sentences(file(many() + more)))
    for name, split in corpus.splits.items():
        for text, row, references in zip(split.texts, split.rows, split.references, strict=True):
            n = re.search(r"\d+", text)[0]
            right = [f"je vois le numéro {n} .", f"vu : {n} !"]
            if name == "train":
                assert references in ([right[0]], [right[1]])
            else:
                assert (references, int(row)) == (right, int(n))
        copies = 2 if name == "train" else 1
        assert set(Counter(split.texts).values()) == {copies}
        assert len(split) == len(split.rows) == len(split.target)
    train = corpus.splits["train"]
    assert len(set(zip(train.texts, map(tuple, train.references), strict=True))) == len(train)


def test_limit_and_length_select_the_pairs(file):
    path = file("one two three four\tun\none\tun deux trois quatre\n" + many())
    corpus = load_pairs(sentences(path, max_tokens=6))
    assert corpus.facts["dropped"] == 0
    # the targets of `many` have six
    corpus = load_pairs(sentences(file(short(100) + many(5), "b"), max_tokens=5))
    texts = [text for split in corpus.splits.values() for text in split.texts]
    assert (corpus.facts["dropped"], sorted(texts)) == (5, sorted(f"{n} !" for n in range(100)))
    splits = load_pairs(sentences(path, limit=150, max_tokens=None)).splits
    assert sorted(np.concatenate([split.rows for split in splits.values()])) == list(range(150))


def test_the_vocabulary_is_counted_on_training_only_or_is_that_of_the_run_that_scores_a_file(file):
    path = file(many())
    corpus = load_pairs(sentences(path, min_frequency=1))
    trained = {word for text in corpus.splits["train"].texts for word in text.split()}
    assert set(corpus.source_vocabulary.symbols) == trained | set(MARKERS)
    vocabularies = (corpus.source_vocabulary, corpus.target_vocabulary)
    mine = sentences(file("I see my cat.\tJe vois mon chat.\n", "other.txt"))
    other = load_pairs(mine, vocabularies, keep_splits=True)
    assert (other.source_vocabulary, other.target_vocabulary) == vocabularies
    # "i see my cat ." without "my" and "cat", "je vois mon chat ." without "mon" and "chat"
    assert other.facts["known_symbols"] == {"source": 0.6, "target": 0.6}
    # to be scored, a file is one test split with every source
    whole = load_pairs(sentences(file(many() + many())), vocabularies, keep_splits=True)
    assert list(whole.splits) == ["test"]
    assert whole.splits["test"].rows.tolist() == list(range(200))
    assert whole.test_set.endswith("pairs.txt: all")


def test_fingerprints_and_keys_depend_on_every_text_and_on_nothing_else(file):
    pairs = Split(["a b", "c"], [["d"], ["e", "f"]], np.arange(2))
    others = [
        replace(pairs, texts=["a", "b c"]),
        replace(pairs, labels=[["d", "e"], ["f"]]),
        replace(pairs, labels=[["d"], ["f", "e"]]),
        replace(pairs, texts=["c", "a b"]),
    ]
    assert len({fingerprint(with_targets(each)) for each in (pairs, *others)}) == 5
    path = file(many())
    corpus = load_pairs(sentences(path))
    again = load_pairs(sentences(file(many(), "elsewhere.txt")))
    assert (corpus.fingerprints, corpus.source_key) == (again.fingerprints, again.source_key)
    changed = load_pairs(sentences(file(many().replace("numéro 7.", "numéro sept."))))
    assert changed.source_key != corpus.source_key
    assert changed.fingerprints != corpus.fingerprints
    assert find_pair_source(strings()).key != find_pair_source(strings(seed=2)).key


BAD_FILES = {
    "no tab": ("a\tb\n\nonly words\n", "row 2 .* has 1 columns"),
    "empty source": ("a\tb\n \tb\n", "row 1 .* has an empty source"),
    "empty target": ("a\t\u00a0\tCC-BY\n", "row 0 .* has an empty target"),
    "too few": ("a\tb\n", "nothing is left for (validation|test)"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_the_place(file, name):
    content, words = BAD_FILES[name]
    with pytest.raises(UserError, match=words):
        load_pairs(sentences(file(content), max_tokens=9))


def test_a_missing_file_is_named_with_its_setting(tmp_path):
    with pytest.raises(UserError, match=r"^data\.path=.*absent\.txt: .*No such file or directory"):
        find_pair_source(sentences(tmp_path / "absent.txt"))
