"""What an encoder-decoder wrote is shown as it is, and where it looked as the weights say, whatever the symbols are."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from imdbattn.explain import show as explain
from imdbattn.explain.alignment import (
    METHOD,
    SHADES,
    WITHOUT,
    Decoded,
    alignment,
    digest,
    drawn,
    map_lines,
    page,
    print_decoded,
    write_page,
)
from tests.test_report import Page

HOSTILE = "<script>alert('$x_{$')</script>"
PNG = b"\x89PNG"
SYMBOLS = st.text(st.characters(), max_size=12)  # half characters, too


def reversed_by(letters: str, model: str = "seq2seq_attention") -> Decoded:
    """A string written backwards, each letter with nine tenths of the weight on its own place."""
    size = len(letters)
    weights_TS = np.full((size + 1, size), 0.1 / size)
    weights_TS[np.arange(size), size - 1 - np.arange(size)] += 0.9
    weights_TS[size] = 1 / size  # <eos>
    return Decoded(list(letters), list(letters[::-1]), 0.973, weights_TS, model, [], joiner="")


TRANSLATED = Decoded(
    ["she", "has", "a", "dog", "."],
    ["elle", "a", "un", "chien", "."],
    0.00012,
    np.vstack([np.eye(5), np.eye(5)[4]]),
    "seq2seq_attention",
    ["dog"],
    "elle a une chienne .",
)


@pytest.fixture
def terminal(capsys, monkeypatch):
    """terminal(found, columns): the lines that are printed."""

    def lines(found, columns: int = 80) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        print_decoded(found)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_string_written_backwards_is_an_anti_diagonal_in_the_terminal(terminal):
    letters = "BACDEFGHIJKLMNOPQRSTUVWXYZBACDEFGHIJKLMN"  # 40 of them fit 80 columns
    lines = terminal([reversed_by(letters)])
    head = next(place for place, line in enumerate(lines) if line.strip() == letters)
    rows = lines[head + 1 : head + 41]
    assert [line.split()[0] for line in rows] == list(letters[::-1])
    margin = lines[head].index(letters)
    assert [line.index("█") - margin for line in rows] == list(range(39, -1, -1))
    assert all(line.count("█") == 1 for line in rows)
    assert lines[head + 41].startswith("<eos>")
    assert lines[head + 42].strip() == "█ is 90 %"


def test_words_stand_over_their_own_columns(terminal):
    lines = terminal([TRANSLATED])
    head = next(place for place, line in enumerate(lines) if line.split() == TRANSLATED.source)
    for word, line in zip(TRANSLATED.source, lines[head + 1 :], strict=False):
        at = lines[head].index(f" {word} ") + 1
        assert line.index("█") == at
        assert line.count("█") == len(word) + 1


def test_what_is_too_wide_for_a_map_names_the_strongest_sources(terminal):
    found = reversed_by("ABCDEFGHIJ")
    long = replace(found, source=[letter * 9 for letter in found.source])
    lines = terminal([long])
    assert "J <- JJJJJJJJJ 91 %" in lines
    assert any(line.startswith("<eos> <- AAAAAAAAA 10 %, BBBBBBBBB 10 %, ") for line in lines)
    assert not any("█" in line for line in lines)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(SYMBOLS, min_size=1, max_size=30),
    st.lists(SYMBOLS, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_a_map_obeys_no_symbol_and_is_never_wider_than_the_terminal(source, output, seed):
    weights_TS = np.random.default_rng(seed).dirichlet(np.ones(len(source)), len(output) + 1)
    lines = list(map_lines(Decoded(source, output, 0.5, weights_TS, "m", []), 80))
    assert len(lines) in (len(output) + 1, len(output) + 3)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    "".join(lines).encode()  # no half characters
    if len(lines) == len(output) + 3:  # a map
        assert max(map(cell_len, lines)) <= 80


def test_control_characters_do_not_reach_the_terminal(terminal):
    weights_TS = np.array([[0.5, 0.5], [0.0, 1.0]])
    lines = terminal([Decoded(["\x1b[2J", "\x07"], ["\x1b]0;x\x07\ud800"], 0.5, weights_TS, "m", ["\x9b1m"])])
    assert not re.search("[\x00-\x08\x1b\x9b]", "".join(lines))
    assert any("�[2J" in line for line in lines)


def test_source_output_probability_reference_and_unknown_symbols_are_told(terminal):
    text = " ".join(" ".join(terminal([TRANSLATED])).split())
    for told in (
        "source she has a dog .",
        "output elle a un chien .",
        "probability under 0.1 %",
        "reference elle a une chienne .",
        "unknown dog (not in the vocabulary: read as <unk>)",
        METHOD,
    ):
        assert told in text
    found = replace(reversed_by("AB"), reference="B A")
    assert found.told() == {"source": "AB", "output": "BA", "probability": "97.3 %", "reference": "BA"}
    assert replace(found, output=[]).told()["output"] == "(nothing)"


def test_a_model_without_attention_says_so_everywhere(terminal):
    found = replace(reversed_by("ABC"), weights_TS=None)
    text = " ".join(terminal([found]))
    assert " ".join(text.split()).endswith(WITHOUT)
    assert not set(SHADES.strip()) & set(text)
    assert drawn(found) is None
    assert WITHOUT in "".join(Page(page([found], [None])).text)
    with pytest.raises(ValueError, match="no attention"):
        alignment(found)


def test_the_figure_shows_the_weights_in_square_cells_under_their_symbols():
    figure = alignment(TRANSLATED)
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * TRANSLATED.weights_TS)
    assert [label.get_text() for label in axes.get_xticklabels()] == TRANSLATED.source
    assert [label.get_text() for label in axes.get_yticklabels()] == [*TRANSLATED.output, "<eos>"]
    assert axes.get_aspect() == 1
    assert axes.xaxis.get_ticks_position() == "top"


def test_a_figure_of_a_very_long_one_is_cut_and_says_so():
    found = reversed_by("AB" * 70)
    figure = alignment(found, most=60)
    assert figure.axes[0].images[0].get_array().shape == (60, 60)
    assert "the first 60 symbols of 141" in figure.get_suptitle()


def test_without_eos_there_is_no_row_of_it():
    found = reversed_by("ABC")
    stopped = replace(found, weights_TS=found.weights_TS[:3])
    assert stopped.written == ["C", "B", "A"]
    assert alignment(stopped).axes[0].images[0].get_array().shape == (3, 3)


def test_hostile_symbols_are_text_in_the_figure_and_on_the_page(tmp_path):
    found = Decoded([HOSTILE, "b"], [HOSTILE], 0.5, np.array([[0.5, 0.5], [1, 0]]), HOSTILE, [HOSTILE], HOSTILE)
    image = drawn(found)  # matplotlib would take the dollar signs for a formula, and a wrong one
    assert image is not None
    source = write_page([found], [image], tmp_path / "new" / "page.html").read_text()
    shown = Page(source)
    assert "script" not in shown.tags
    assert "".join(shown.text).count(HOSTILE) == 7  # title, heading, output twice, source, reference, unknown
    assert dict(shown.attributes)["content"]
    assert f'content="{explain.POLICY}"' in source
    assert shown.tags.count("img") == 1


def test_the_page_is_framed_as_that_of_reviews_is():
    review = explain.page([explain.Explanation("good", "pos", 0.9, [(0, 4, 1.0)], "base")])
    ours = page([TRANSLATED], [PNG])
    for part in (explain.POLICY, explain.STYLE):
        assert part in review
        assert part in ours
    assert METHOD in "".join(Page(ours).text)


def test_half_characters_are_written_all_the_same(tmp_path):
    found = replace(TRANSLATED, output=["\ud800"])
    assert "elle" in write_page([found], [drawn(found)], tmp_path / "page.html").read_text()


def test_pages_of_other_sources_have_other_names():
    assert digest([TRANSLATED]) == digest([replace(TRANSLATED, output=[])])
    assert digest([TRANSLATED]) != digest([reversed_by("ABC")])
    assert re.fullmatch("[0-9a-f]{12}", digest([TRANSLATED]))
