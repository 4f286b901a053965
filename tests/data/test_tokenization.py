"""Each tokenizer splits texts by its rules, whose words have their places in the text."""

import re
import unicodedata
from typing import get_args

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from imdbattn.data.tokenizer import FIRST_WORD, RULES, UNK, signature_of_rules
from imdbattn.settings.schema import TokenizerName
from tests.texts import WORDS, any_text, nasty_text, split, tokenizer

PIPELINES = [name for name in RULES if name != "torchtext"]


def test_a_tokenizer_that_the_settings_allow_has_rules():
    assert RULES.keys() == {*get_args(TokenizerName)}


def basic_english(text: str) -> list[str]:
    """torchtext's rules, one after the other."""
    text = (
        text.lower().replace("'", " ' ").replace('"', "").replace(".", " . ").replace("<br />", " ")
    )
    return re.sub("[;:]", " ", re.sub("([,()!?])", r" \1 ", text)).split()


def normalized(text: str) -> str:
    """NFC, and NFKC of ligatures and full-width characters."""
    text = re.sub(
        "[\ufb00-\ufb06\uff01-\uff5e]", lambda one: unicodedata.normalize("NFKC", one[0]), text
    )
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, CAN'T, couldn't've", "i do n't , ca n't , could n't 've"),
        ("don’t don`t don´t don\x92t", "do n't do n't do n't do n't"),
        ("It's what they're: I'm, I'd, he'll", "it 's what they 're : i 'm , i 'd , he 'll"),
        ("the simpsons' 'quoted' 'em '90s 1930's", "the simpsons ' ' quoted ' 'em '90s 1930 's"),
        ("O'Brien's rendez-vous at eleven o'clock", "o'brien 's rendez - vous at eleven o'clock"),
        (
            "well-done--ok ---- a\x96b a–b a\x97b a——b",
            "well - done -- ok -- a - b a - b a -- b a -- b",
        ),
        ("one<br /><br />two<BR>three<br/>four", "one two three four"),
        ('\x93so\x94 “so” "so" \x91so\x92 ‘so’', '" so " " so " " so " \' so \' \' so \''),
        (
            "hm.. well... oh.....\x85 so… The end.The",
            "hm ... well ... oh ... ... so ... the end . the",
        ),
        ("1,000 of 3.5 at 7:30, 10/10. 5.The", "1,000 of 3.5 at 7:30 , 10/10 . 5 . the"),
        ("Mr. Who, the U.S. army vs. E.T. i.e. us.", "mr. who , the u.s. army vs. e.t. i.e. us ."),
        ("*so* _so_ $5 r&b :) !!", "* so * _ so _ $ 5 r & b : ) ! !"),
    ],
)
def test_ptb_splits_like_the_penn_treebank(text, words):
    assert split("ptb", text) == words.split()


def test_words_have_their_place_in_the_original_text():
    text = "İ said “Don’t”… WELL--no<br />Café!\u0301"
    expected = ["İ", "said", "“", "Do", "n’t", "”", "…", "WELL", "--", "no", "Café", "!", "\u0301"]
    assert [text[word.start : word.end] for word in tokenizer("ptb").words(text)] == expected


@pytest.mark.parametrize("name", ["ptb", "whitespace"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Une FIANCE\u0301E nai\u0308ve", "une fiancée naïve"),  # as macOS writes accents
        ("ﬁlm ﬂat eﬀect oﬃce baﬄe laﬅ ﬆop", "film flat effect office baffle last stop"),
        ("Ｇｏｏｄ １０", "good 10"),
        ("½ m² ™ ¨", "½ m² ™ ¨"),  # have vectors, and NFKC would replace them
    ],
)
def test_accents_ligatures_and_full_width_letters_are_normalized(name, text, words):
    assert split(name, text) == words.split()


@pytest.mark.parametrize("name", ["ptb", "whitespace"])
@given(st.lists(st.text("aeEoué각öＡ\u0301\u0308\u0323ﬁ0", min_size=1).map("x{}".format)))
def test_a_decomposed_text_has_the_same_words_at_their_places(name, plain):
    text = " ".join(unicodedata.normalize("NFD", word) for word in plain)
    assert split(name, text) == split(name, unicodedata.normalize("NFC", text))
    assert [text[word.start : word.end] for word in tokenizer(name).words(text)] == text.split()


@given(nasty_text, any_text)
@example('no<b"r />matter; <br/>', "")  # the double quote is removed before <br />
@example("ΟΔΟΣ İΣ ΣΟΦΟΣ' Σİ", "")  # sigma has another form where a word ends
def test_basic_english_and_whitespace_equal_their_rules_on_any_text(text, other):
    text, other = (re.sub("[\ud800-\udfff]", "�", one) for one in (text, other))
    assert split("basic_english", text) == basic_english(text)
    assert split("whitespace", other) == normalized(other.lower()).split()


@pytest.mark.parametrize("name", PIPELINES)
@given(texts=st.lists(any_text, max_size=4))
@example(texts=["one<br />two"])
def test_encode_gives_the_ids_of_words_and_never_pad_or_cls(name, texts):
    found = [tokenizer(name).words(text) for text in texts]
    ids, offsets, _ = tokenizer(name).encode(texts)
    assert np.diff(offsets).tolist() == [len(words) for words in found]
    assert ids.tolist() == [word.id for words in found for word in words]
    for word in (word for words in found for word in words):
        assert word.id == (WORDS.index(word.text) + FIRST_WORD if word.text in WORDS else UNK)


def test_signature_changes_with_the_library(monkeypatch):
    before = signature_of_rules("ptb")
    monkeypatch.setattr(tokenizers, "__version__", "0.0")
    assert signature_of_rules("ptb") != before
