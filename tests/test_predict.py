"""predict says label and probability, shows what was attended to, and escapes what reviews hold."""

import re
import sys

import pytest

from imdbattn.analysis.explain import Explanation, page
from imdbattn.predict import read_texts
from imdbattn.settings import BEYOND, RUNGS, quoted, take_argument
from imdbattn.training.score import label_texts

NASTY = "It's \"good\", {really} [so] = 5, a=b, #1 $x ${y} \\ 'quoted' <script>alert(1)</script> 100% \\"


@pytest.mark.parametrize("rung", [*RUNGS, *BEYOND])
def test_shares_belong_to_the_words_of_the_text(trained, settings, rung):
    folder, _ = trained(rung)
    texts = ["The film was great, a lovely story.", "", "zzz qqq", "dull " * 600]
    found, _ = label_texts(settings(f"run={folder}", "explain=true", config="predict"), texts)
    for explanation, text in zip(found, texts, strict=True):
        total = sum(share for *_, share in explanation.words)
        if not text:
            assert total == 0
        elif rung.endswith("cls"):
            assert 0 < total < 1  # <cls> keeps a part of itself
        else:
            assert total == pytest.approx(1, abs=1e-4)
        assert "".join(piece for piece, _ in explanation.pieces()) == text
        assert 0.5 <= explanation.probability <= 1
    assert [found[0].text[start:end] for start, end, _ in found[0].words][:3] == ["The", "film", "was"]
    assert len(found[3].words) == 512


@pytest.mark.parametrize("rung", ["residual_pe", "learned_query", "tuned"])
def test_with_and_without_explanation_the_same_is_said(trained, settings, rung):
    folder, _ = trained(rung)
    texts = ["the film was great", "", "a dull story of it"] * 30
    plainly, _ = label_texts(settings(f"run={folder}", config="predict"), texts)
    explained, _ = label_texts(settings(f"run={folder}", "explain=true", config="predict"), texts)
    assert [found.label for found in plainly] == [found.label for found in explained]
    assert [found.probability for found in plainly] == pytest.approx(
        [found.probability for found in explained], abs=1e-5
    )


def test_learned_query_looks_at_the_words_that_decide(trained, settings):
    folder, _ = trained("learned_query")
    text = "the film was a fine story of the actor"
    found, _ = label_texts(settings(f"run={folder}", "explain=true", config="predict"), [text])
    assert found[0].label == "pos"
    assert found[0].top(1)[0][0] == "fine"


def test_any_path_and_any_text_pass_the_command_line_unchanged(monkeypatch):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text in (
        NASTY,
        "",
        "a\nb",
        "1e3",
        "\\\\'",
        "x" * 5000,
        "!",
        "glob(*)",
        "a,b",
        "${",
        "text=a",
        "my dir/r (1).csv",
    ):
        monkeypatch.setattr("sys.argv", ["predict", f"text={text}", "explain=true"])
        assert take_argument("text") == text
        assert sys.argv == ["predict", "explain=true"]
        (file,) = OverridesParser.create().parse_overrides([quoted(f"file={text}", ("run", "file"))])
        assert file.value() == text


def test_predict_prints_label_probability_and_an_escaped_page(trained, shell, tmp_path):
    folder, _ = trained("residual_pe_cls")
    done = shell("predict", f"run={folder}", f"text={NASTY} great lovely", "explain=true")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^(neg|pos)  \d+\.\d %", done.stdout)
    path = re.search(r"page: (.+\.html)", done.stdout.replace("\n", " "))[1]
    content = (folder / "explanations" / path.rsplit("/", 1)[1]).read_text()
    assert "<script" not in content
    assert "&lt;" in content
    assert "://" not in content


def test_predict_reads_lines_from_a_file_and_from_standard_input(trained, shell, tmp_path):
    folder, _ = trained("residual_pe")
    lines = "the film was great and it was a lovely good story .\nthe film was awful and it was a dull bad story .\n"
    (tmp_path / "reviews.txt").write_text(lines)
    from_file = shell("predict", f"run={folder}", f"file={tmp_path}/reviews.txt")
    from_input = shell("predict", f"run={folder}", input=lines)
    assert from_file.stdout == from_input.stdout
    assert [line.split()[0] for line in from_file.stdout.splitlines()] == ["pos", "neg"]


def test_a_byte_order_mark_is_no_part_of_the_first_review(trained, shell, tmp_path):
    folder, _ = trained("residual_pe")
    lines = b"\xef\xbb\xbfgreat\ngreat\n"
    (tmp_path / "reviews.txt").write_bytes(lines)
    from_file = shell("predict", f"run={folder}", f"file={tmp_path}/reviews.txt").stdout.splitlines()
    from_input = shell("predict", f"run={folder}", input=lines.decode()).stdout.splitlines()
    assert from_file == from_input == [from_file[0]] * 2


def test_lines_end_where_a_person_ends_them(tmp_path):
    (tmp_path / "r.txt").write_bytes("one\x85still one\u2028and on\r\ntwo\n".encode())
    assert read_texts({"text": None, "file": f"{tmp_path}/r.txt"}) == ["one\x85still one\u2028and on", "two"]


def test_a_script_in_a_label_or_a_review_stays_text():
    made = page([Explanation("<script>x</script>", "<b>", 0.5, [(0, 8, 1.0)], "<i>model")])
    assert "<script" not in made
    assert "<b>" not in made
    assert "<i>" not in made
