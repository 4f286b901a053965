"""A comparison becomes files and a page with the same content, whatever its runs lack."""

import io
import json

import pytest

import imdbattn
from imdbattn.api.comparison import Comparison
from imdbattn.report import pages
from imdbattn.report.comparison_page import report_of
from imdbattn.report.numbers import p_value
from imdbattn.report.pages import print_reports, terminal, write_reports
from tests.made_up import PNG, Page, made_up, words
from tests.resuming import contents


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are not drawn, which takes a second or two; all else is as it is."""
    monkeypatch.setattr(pages, "png", lambda _: PNG)
    monkeypatch.setattr(pages, "pdf", lambda _: b"PDF")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A comparison of three variants, and the folder into which it was written."""
    comparison = made_up()
    written = write_reports(
        [report_of(comparison)], tmp_path_factory.mktemp("reports") / "new" / "folder"
    )
    assert written.name == "comparison.html"
    return comparison, written.parent


def printed(comparison) -> str:
    print_reports([report_of(comparison)], console := terminal(file=io.StringIO(), width=400))
    return console.file.getvalue()


def test_everything_is_written_and_nothing_else(written):
    names = ("accuracies", "curves_accuracy", "curves_loss")
    tables = {f"comparison.{kind}" for kind in ("json", "md", "html", "tex")}
    figures = {f"figures/{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert contents(written[1]).keys() == tables | figures
    assert json.loads((written[1] / "comparison.json").read_text()) == written[0]


def test_page_markdown_and_terminal_state_the_same_result(written):
    comparison, folder = written
    best = comparison["variants"][-1]
    low, high = (f"{100 * end:.1f}" for end in best["interval"])
    numbers = f"reaches {100 * best['test']['mean']:.1f} % on the test set ({low} to {high})"
    told = [
        f"residual, the best of 3 by validation, {numbers}",
        "base against mean: better by 1.9 points (1.4 to 2.5), p < 0.001",
        "residual against base: no difference shown, +0.1 points (−0.4 to +0.7), p = 0.310",
        "fingerprint fc45bb824bf15091",
        "2 (seeds 1, 2)",
        "runs/broken",
    ]
    texts = (
        words((folder / "comparison.html").read_text()),
        (folder / "comparison.md").read_text().replace("\\", ""),
    )
    for text in (*texts, printed(comparison)):
        assert [line for line in told if line not in text] == []


def test_the_tables_for_print_are_those_of_the_page(written):
    lines = [line.strip() for line in (written[1] / "comparison.tex").read_text().splitlines()]
    (base,) = (line for line in lines if line.startswith("base &"))
    assert base.startswith(
        r"base & 2 (seeds 1, 2) & 82.7 $\pm$ 0.1 & 82.7 $\pm$ 0.1 & 81.8--83.7 &"
    )


def test_a_report_that_cannot_be_rendered_changes_no_file(undrawn, tmp_path, monkeypatch):
    write_reports([report_of(made_up(("mean", "base")))], tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(pages, "page", None)
    with pytest.raises(TypeError):
        write_reports([report_of(made_up(("mean",)))], tmp_path)
    assert contents(tmp_path) == before


def test_several_sets_have_folders_and_an_index(undrawn, tmp_path):
    write_reports([report_of(made_up())], tmp_path)
    sets = [made_up(), made_up(("mean", "base")) | {"fingerprint": "../up", "test_set": "<large>"}]
    index = write_reports(list(map(report_of, sets)), tmp_path)
    folders = ["test-fc45bb824bf15091", "test-up"]
    names = {"comparison.html", "comparison.md", "figures", *folders}
    assert {path.name for path in tmp_path.iterdir()} == names, "numbers of one set are gone"
    links = [value for name, value in Page(index.read_text()).attributes if name == "href"]
    assert links == [f"{name}/comparison.html" for name in folders]


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("comparison.html", 1),
        ("figures/accuracies.png", 1),
        ("comparison.tex", 2),
        ("test-up/comparison.md", 2),
    ],
)
def test_a_file_that_is_not_of_an_earlier_report_is_refused(undrawn, tmp_path, name, sets):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    compared = (made_up(), made_up(("mean", "base")) | {"fingerprint": "up"})
    with pytest.raises(imdbattn.UserError, match=f"{name} is not a file of an earlier report"):
        Comparison(compared[:sets]).save(tmp_path)
    assert contents(tmp_path) == before


def test_a_negative_metric_has_a_minus_sign_and_zero_has_none():
    comparison = made_up() | {"metric": "cost"}
    for number, variant in enumerate(comparison["variants"]):
        variant["metric"] = {"mean": -0.5 * number, "sd": 0.25, "values": [-0.5 * number]}
        variant["interval"] = [-1.5, -0.0]
    lines = printed(comparison).splitlines()
    for name, cost in (("mean", "0 ± 0.25"), ("base", "−0.5 ± 0.25"), ("residual", "−1 ± 0.25")):
        (line,) = (text for text in lines if text.startswith(f"{name}  "))
        assert f"  {cost}  " in line
        assert "  −1.5–0 " in line


@pytest.mark.parametrize(
    ("p", "text"), [(0.0002, "p < 0.001"), (0.0499, "p = 0.0499"), (0.0503, "p = 0.0503")]
)
def test_a_printed_p_value_is_on_the_same_side_of_the_level_as_the_value(p, text):
    assert p_value(p) == text
