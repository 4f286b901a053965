"""predict prints label and probability, shows the attention, and escapes the texts of reviews."""

import random
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from imdbattn.data.user_files.tables import stream_lines
from imdbattn.launch.hydra_config import quote, separate_text
from imdbattn.runs.apply import load_predictor, predictions_of
from tests.commands import label_texts
from tests.marks import KINDS, slow_except
from tests.models import BEYOND, RUNGS
from tests.texts import HARD_TEXT
from tests.world import BAD, FILLER, GOOD


@pytest.mark.parametrize("rung", slow_except(KINDS, [*RUNGS, *BEYOND]))
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
    letters = [(0, 1, 0.2), (0, 1, 0.1), (2, 3, 0.4)]  # f, i and a
    one = replace(found[0], text="ﬁ a", words=letters, probability=0.5)
    assert one.pieces() == [("ﬁ", 0.5), (" ", None), ("a", 1.0)]
    assert one.facts()["largest shares"].startswith("a 40.0 %")
    assert one.line.endswith(" 50.0 %  ﬁ a")
    first = [found[0].text[start:end] for start, end, _ in found[0].words]
    assert first[:3] == ["The", "film", "was"]
    assert len(found[3].words) == 512


@pytest.mark.parametrize("rung", ["residual_pe_cls", "wide"])
def test_a_text_has_the_same_label_alone_and_among_others_and_results_are_in_order(
    trained, settings, rung
):
    folder, _ = trained(rung)
    cfg = settings(f"run={folder}", config="predict")
    predictor, _ = load_predictor(cfg)
    draw = random.Random(0)
    texts = [
        " ".join(draw.choices((*FILLER, *GOOD, *BAD), k=draw.choice([0, 3, 40, 600])))
        for _ in range(60)
    ]
    together = list(predictions_of(predictor, texts, cfg))
    for text, found in zip(texts, together, strict=True):
        (alone,) = predictor.label([text])
        assert (found.text, found.output) == (text, alone.output)
        assert found.probability == pytest.approx(alone.probability, abs=3e-7)


def test_any_path_and_any_text_can_be_given_on_the_command_line():
    special = ["", "a\nb", "1e3", "\\\\'", "glob(*)", "a,b", "${", "text=a", "my dir/r (1).csv"]
    for text in (HARD_TEXT, *special):
        assert separate_text([f"text={text}", "explain=true"]) == (text, ["explain=true"])
        (file,) = OverridesParser.create().parse_overrides([quote(f"file={text}")])
        assert file.value() == text
    (runs,) = OverridesParser.create().parse_overrides([quote("run=[runs/a,my runs,'b, (2)']")])
    assert runs.value() == ["runs/a", "my runs", "b, (2)"]


def test_predict_reads_lines_from_a_file_and_from_standard_input(trained, shell, tmp_path):
    folder, _ = trained("residual_pe")
    lines = "it was a lovely good and great story .\nit was a dull bad and awful story .\n"
    (tmp_path / "reviews.txt").write_text(lines)
    from_file = shell("predict", f"run={folder}", f"file={tmp_path}/reviews.txt")
    from_input = shell("predict", f"run={folder}", input=lines)
    assert from_file.stdout == from_input.stdout
    assert [line.split()[0] for line in from_file.stdout.splitlines()] == ["pos", "neg"]


def test_a_table_is_read_by_the_column_of_the_run(trained, shell, tmp_path):
    shutil.copytree(trained("mean")[0], tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("text_column: text", "text_column: review"))
    (tmp_path / "r.csv").write_text("text,review\nbad,great\nawful,lovely\n")
    for column, label in (([], "pos"), (["column=text"], "neg")):
        done = shell("predict", "run=run", "file=r.csv", *column, cwd=tmp_path)
        assert [line.split()[0] for line in done.stdout.splitlines()] == [label, label], done.stderr


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\x85still one\u2028and on\r\ntwo\n", ["one\x85still one\u2028and on", "two"]),
        ("one\n\n\ntwo\r", ["one", "", "", "two\r"]),
        ("\n", [""]),
        ("\ufeff\n\ufeffone", ["", "\ufeffone"]),
        ("\ufeff", []),
        ("", []),
    ],
)
def test_lines_end_only_at_line_breaks(tmp_path, content, lines):
    (tmp_path / "r.txt").write_bytes(content.encode())
    assert list(stream_lines(tmp_path / "r.txt")) == lines


def test_no_line_of_a_file_with_an_invalid_line_is_labeled(trained, shell, tmp_path):
    (tmp_path / "r.txt").write_bytes(b"a good film\n" * 5000 + b"caf\xe9\n")
    done = shell("predict", f"run={trained('mean')[0]}", f"file={tmp_path}/r.txt", status=2)
    assert done.stdout == ""
    assert re.fullmatch(
        r"error: .*r\.txt, line 5001: .*byte 0x.. in position 3.*; save it as UTF-8\n",
        done.stderr,
    )


@pytest.mark.parametrize(("keep", "kept"), [("id", ["id"]), ("all", ["id", "review"])])
def test_a_labeled_table_keeps_the_columns_that_are_asked_for(trained, shell, tmp_path, keep, kept):
    (tmp_path / "new.csv").write_text(
        'id,review,label\n7,a great film,x\n007,dull,\nüber,"a, b",z\n'
    )
    arguments = ("file=new.csv", "column=review", f"keep={keep}", "out=found.csv")
    shell("predict", f"run={trained('mean')[0]}", *arguments, cwd=tmp_path)
    found = pd.read_csv(tmp_path / "found.csv", dtype=str)
    assert found["id"].tolist() == ["7", "007", "über"]
    assert found["text"].tolist() == ["a great film", "dull", "a, b"]
    assert {*kept} <= {*found.columns}
    if keep == "all":
        assert found["input_label"].tolist()[::2] == ["x", "z"]
        assert set(found["label"]) <= {"neg", "pos"}
        again = ("file=found.csv", "keep=all", "out=twice.csv", "column=text")
        shell("predict", f"run={trained('mean')[0]}", *again, cwd=tmp_path)
        twice = pd.read_csv(tmp_path / "twice.csv", dtype=str)
        assert twice["input_label"].tolist()[::2] == ["x", "z"]
        assert twice["input_input_label"].tolist() == found["label"].tolist()
