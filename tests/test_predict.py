"""predict says label and probability, shows what was attended to, and escapes what reviews hold."""

import re

import pytest

from imdbattn.analysis.explain import Explanation, page
from imdbattn.errors import UserError
from imdbattn.predict import read_texts
from imdbattn.settings import quote_arguments, take_argument
from imdbattn.training.fit import label_texts

from .conftest import RUNGS

NASTY = "It's \"good\", {really} [so] = 5, a=b, #1 $x ${y} \\ 'quoted' <script>alert(1)</script> 100% \\"


@pytest.mark.parametrize("rung", RUNGS)
def test_shares_sum_to_one_over_the_words_of_the_text(trained, settings, rung):
    folder, _ = trained(rung)
    texts = ["The film was great, a lovely story.", "", "zzz qqq", "dull " * 600]
    found, _ = label_texts(settings(f"run={folder}", config="predict"), texts)
    for explanation, text in zip(found, texts, strict=True):
        total = sum(share for *_, share in explanation.words)
        assert total == pytest.approx(1 if text and rung != "residual_cls" and "cls" not in rung else total, abs=1e-4)
        assert "".join(piece for piece, _ in explanation.pieces()) == text
        assert 0.5 <= explanation.probability <= 1
    assert [found[0].text[start:end] for start, end, _ in found[0].words][:3] == ["The", "film", "was"]
    assert len(found[3].words) == 512


def test_learned_query_looks_at_the_words_that_decide(trained, settings):
    folder, _ = trained("learned_query")
    found, _ = label_texts(settings(f"run={folder}", config="predict"), ["the film was a lovely story of the actor"])
    assert found[0].label == "pos"


def test_any_path_and_any_text_pass_the_command_line_unchanged(monkeypatch):
    import sys

    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text in (NASTY, "", "a\nb", "null", "1e3", "\\\\'", "x" * 5000, "!", "glob(*)", "a,b", "${", "text=a"):
        monkeypatch.setattr("sys.argv", ["predict", f"file={text}", f"text={text}", "explain=true"])
        quote_arguments("file")
        assert take_argument("text") == text
        file, explain = OverridesParser.create().parse_overrides(sys.argv[1:])
        assert file.value() == text
        assert explain.value() is True


def test_predict_prints_label_probability_and_an_escaped_page(trained, shell, tmp_path):
    folder, _ = trained("residual_pe_cls")
    done = shell("predict", f"run={folder}", f"text={NASTY} great lovely", "explain=true")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^(neg|pos)  \d+\.\d %", done.stdout)
    path = re.search(r"page: (.+\.html)", done.stdout.replace("\n", " "))[1]
    content = (folder / "explanations" / path.rsplit("/", 1)[1]).read_text()
    assert "<script" not in content
    assert "&lt;" in content
    assert "http" not in content


def test_predict_reads_lines_from_a_file_and_from_standard_input(trained, shell, tmp_path):
    folder, _ = trained("residual_pe")
    lines = "the film was great and it was a lovely good story .\nthe film was awful and it was a dull bad story .\n"
    (tmp_path / "reviews.txt").write_text(lines)
    from_file = shell("predict", f"run={folder}", f"file={tmp_path}/reviews.txt")
    from_input = shell("predict", f"run={folder}", input=lines)
    assert from_file.stdout == from_input.stdout
    assert [line.split()[0] for line in from_file.stdout.splitlines()] == ["pos", "neg"]


def test_a_script_in_a_label_or_a_review_stays_text():
    made = page([Explanation("<script>x</script>", "<b>", 0.5, [(0, 8, 1.0)], "<i>model")])
    assert "<script" not in made
    assert "<b>" not in made
    assert "<i>" not in made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "a", "file": "b"}, "text= or file=, not both"),
        ({"file": "/none/such"}, "file=/none/such cannot be read"),
    ],
)
def test_wrong_input_is_named(given, message):
    with pytest.raises(UserError, match=message):
        read_texts({"text": None, "file": None} | given)


@pytest.mark.parametrize(
    ("run", "message"), [(None, "run=<run folder> is needed"), ("nowhere", "is not a folder"), (".", "no finished run")]
)
def test_a_run_that_is_none_is_named(settings, tmp_path, monkeypatch, run, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        label_texts(settings(f"run={run or 'null'}", config="predict"), ["good"])
