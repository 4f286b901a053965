"""Outputs and alignments of an encoder-decoder are displayed unchanged, whatever the symbols."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imdbattn.explain.figures import attention_png, sequence_attention
from imdbattn.explain.prediction import Translation
from imdbattn.explain.show import digest, page, print_predictions, write_page
from imdbattn.settings.safety import PAGE_POLICY
from tests.test_report import Page

HOSTILE = "<script>alert('$x_{$')</script>"
PNG = b"\x89PNG"
SYMBOLS = st.text(st.characters(), max_size=12)  # with lone surrogates


def sequence(source: list[str], written: list[str], weights_TS: np.ndarray | None, **more) -> Translation:
    texts = {"text": " ".join(source), "output": " ".join(written)}
    facts = {**texts, "probability": 0.973, "model": "seq2seq_attention"} | more
    return Translation(source=source, written=written, weights_TS=weights_TS, **facts)


def reversed_by(letters: str) -> Translation:
    """A string written backwards, each letter with nine tenths of the weight on its own place."""
    size = len(letters)
    weights_TS = np.full((size + 1, size), 0.1 / size)
    weights_TS[np.arange(size), size - 1 - np.arange(size)] += 0.9
    weights_TS[size] = 1 / size  # <eos>
    return sequence(list(letters), list(letters[::-1]), weights_TS, text=letters, output=letters[::-1])


TRANSLATED = sequence(
    ["she", "has", "a", "dog", "."],
    ["elle", "a", "un", "chien", "."],
    np.vstack([np.eye(5), np.eye(5)[4]]),
    probability=0.00012,
    unknown=["dog"],
    reference="elle a une chienne .",
)


@pytest.fixture
def terminal(capsys, monkeypatch):
    """terminal(readings): the lines that are printed."""

    def lines(readings) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        print_predictions(readings)
        return capsys.readouterr().out.splitlines()

    return lines


def test_the_terminal_names_the_sources_with_the_largest_weights(terminal):
    lines = terminal([reversed_by("ABCDEFGHIJ")])
    assert lines[0] == "JIHGFEDCBA, 97.3 %"
    assert lines[1] == "source: ABCDEFGHIJ"
    assert lines[2:12] == [f"{letter} <- {letter} 91.0 %" for letter in "JIHGFEDCBA"]
    assert lines[12].startswith("<eos> <- A 10.0 %, B 10.0 %, ")


@settings(max_examples=80, deadline=None)
@given(st.lists(SYMBOLS, min_size=1, max_size=30), st.lists(SYMBOLS, max_size=12), st.integers(0, 2**32 - 1))
def test_an_alignment_has_a_line_for_each_row_and_the_largest_weight_first(source, written, seed):
    weights_TS = np.random.default_rng(seed).dirichlet(np.ones(len(source)), len(written) + 1)
    lines = sequence(source, written, weights_TS).alignment()
    for line, name, weights_S in zip(lines, [*written, "<eos>"], weights_TS, strict=True):
        assert line.startswith(f"{name} <- {source[weights_S.argmax()]} ")


def test_control_characters_do_not_reach_the_terminal(terminal):
    weights_TS = np.array([[0.5, 0.5], [0.0, 1.0]])
    lines = terminal([sequence(["\x1b[2J", "\x07"], ["\x1b]0;x\x07\ud800"], weights_TS, unknown=["\x9b1m"])])
    assert not re.search("[\x00-\x08\x1b\x9b]", "".join(lines))
    assert any("�[2J" in line for line in lines)


def test_source_output_probability_reference_and_unknown_symbols_are_printed(terminal):
    assert terminal([TRANSLATED])[:4] == [
        "elle a un chien ., under 0.1 %",
        "source: she has a dog .",
        "reference: elle a une chienne .",
        "unknown: dog (not in the vocabulary: read as <unk>)",
    ]
    assert replace(TRANSLATED, output="").heading == "(nothing), under 0.1 %"


def test_for_a_model_without_attention_the_output_says_so(terminal):
    without = replace(reversed_by("ABC"), weights_TS=None)
    assert "attention: none: the decoder uses a single vector of the source" in terminal([without])
    assert attention_png(without) is None
    source = page([without], [None])
    assert "none: the decoder uses a single vector of the source" in "".join(Page(source).text)
    assert "<img" not in source


def test_the_figure_shows_the_weights_in_square_cells_with_their_symbols():
    figure = sequence_attention(TRANSLATED)
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * TRANSLATED.weights_TS)
    assert [label.get_text() for label in axes.get_xticklabels()] == TRANSLATED.source
    assert [label.get_text() for label in axes.get_yticklabels()] == [*TRANSLATED.written, "<eos>"]
    assert axes.get_aspect() == 1
    assert axes.xaxis.get_ticks_position() == "top"


def test_a_figure_of_a_very_long_sequence_is_shortened_and_says_so():
    figure = sequence_attention(reversed_by("AB" * 70), most=60)
    assert figure.axes[0].images[0].get_array().shape == (60, 60)
    assert "the first 60 symbols of 141" in figure.get_suptitle()


def test_hostile_symbols_are_text_in_the_figure_and_on_the_page(tmp_path):
    weights_TS = np.array([[0.5, 0.5], [1, 0]])
    hostile = sequence([HOSTILE, "b"], [HOSTILE], weights_TS, model=HOSTILE, unknown=[HOSTILE], reference=HOSTILE)
    # matplotlib would take the dollar signs for a formula, and an invalid one.
    source = write_page([hostile], tmp_path / "new" / "page.html").read_text()
    parsed = Page(source)
    assert "script" not in parsed.tags
    assert "".join(parsed.text).count(HOSTILE) == 6  # title, headings of page and output, source, reference, unknown
    assert ("content", PAGE_POLICY) in parsed.attributes
    assert parsed.tags.count("img") == 1


def test_pages_of_different_sources_have_different_names():
    assert digest([TRANSLATED]) == digest([replace(TRANSLATED, output="")])
    assert digest([TRANSLATED]) != digest([reversed_by("ABC")])
    assert re.fullmatch("[0-9a-f]{12}", digest([TRANSLATED]))
