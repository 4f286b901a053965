"""Outputs and alignments of an encoder-decoder are displayed unchanged, whatever the symbols."""

from dataclasses import replace

import numpy as np

from imdbattn.explain.prediction import Translation
from imdbattn.explain.show import print_predictions, write_page
from imdbattn.settings.safety import PAGE_POLICY
from tests.test_report import Page

HOSTILE = "<script>alert('$x_{$')</script>"


def sequence(source: list[str], written: list[str], weights_TS: np.ndarray | None, **more) -> Translation:
    texts = {"text": " ".join(source), "output": " ".join(written)}
    facts = {**texts, "probability": 0.973, "model": "seq2seq_attention"} | more
    return Translation(source=source, written=written, weights_TS=weights_TS, **facts)


TRANSLATED = sequence(
    ["she", "has", "a", "dog", "."],
    ["elle", "a", "un", "chien", "."],
    np.vstack([np.eye(5), np.eye(5)[4]]),
    probability=0.00012,
    unknown=["dog"],
    reference="elle a une chienne .",
)


def test_source_output_probability_reference_and_unknown_symbols_are_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_predictions([TRANSLATED])
    assert capsys.readouterr().out.splitlines()[:4] == [
        "elle a un chien ., under 0.1 %",
        "source: she has a dog .",
        "reference: elle a une chienne .",
        "unknown: dog (not in the vocabulary: read as <unk>)",
    ]
    assert replace(TRANSLATED, output="").heading == "(nothing), under 0.1 %"


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
