"""A comparison becomes files and a page with the same content, whatever its reviews contain and its runs lack.

The comparisons here are invented; tests/test_compare.py makes real ones.
"""

import base64
import io
import itertools
import json
import random
import re
from html.parser import HTMLParser

import pytest

from imdbattn.api.comparison import html as report_in_notebook
from imdbattn.comparison import figures, report
from imdbattn.comparison.compare import compare_sets
from imdbattn.errors import UserError
from imdbattn.pages import svg, terminal
from tests.test_compare import write_decoded, write_run

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
HOSTILE = (
    """<script>alert("1")</script> 'quoted' & <img src="https://example.org/x.png"> {{ 7 * 7 }} | `a` \n"""
    + "w " * 3000
)


def made_up(names=("mean", "base", "residual"), seeds=(1, 2, 3), labels=("neg", "pos"), text=HOSTILE, split="test"):
    """A comparison as analysis.comparison makes it, with numbers drawn from a fixed seed."""
    draw = random.Random(0)

    def mean_of(center, spread):
        values = [center + draw.gauss(0, spread) for _ in seeds]
        mean = sum(values) / len(values)
        sd = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
        return {"mean": mean, "sd": sd, "values": values}

    def curve(start, end):
        steps = [start + (end - start) * (1 - 0.5**epoch) for epoch in range(8)]
        return {
            "epochs": list(range(1, 9)),
            "values": [[step + draw.gauss(0, 0.01) for step in steps[: 8 - i]] for i in range(len(seeds))],
        }

    def sliced(parts, center):
        return [{"name": name, "reviews": n, "accuracy": center + draw.gauss(0, 0.02)} for name, n in parts]

    lengths = [("up to 120 words", 1200), ("121 to 200 words", 1300), ("201 to 400 words", 1500), ("longer", 1000)]
    rungs = []
    for i, name in enumerate(names):
        center = 0.76 + 0.1 * (i + 1) / len(names)
        rungs.append(
            {
                "label": name,
                "model": name.split()[0],
                "after": names[i - 1] if i else None,
                "varied": {},
                "trained_on": None,
                "apart_from_range": name,
                "seeds": list(seeds),
                "folders": [f"runs/{name}-s{seed}" for seed in seeds],
                "validation": mean_of(center, 0.003),
                "test": mean_of(center, 0.002) if split == "test" else None,
                "folds": None,
                "bleu": {"validation": None, "test": None},
                "lengths": [],
                "interval": [center - 0.009, center + 0.0101],
                "parameters": 152 * 7 ** min(i, 4),
                "tokens_per_s": 1_588_123.4 / (i + 1) ** 2,
                "train_seconds": 8.25 * (i + 1) ** 2,
                "epochs": 8.0,
                "ece": 0.0312 + 0.001 * i,
                "reliability": [
                    {"confidence": c, "accuracy": c - 0.03 * (c - 1 / len(labels)), "count": 100.5 * (k + 1)}
                    for k, c in enumerate((0.52, 0.57, 0.63, 0.7, 0.77, 0.83, 0.9, 0.97))
                ],
                "macro_f1": mean_of(center - 0.01, 0.002),
                "confusion": [[2000.3 if a == b else 300.7 for b in labels] for a in labels],
                "slices": {
                    "length": sliced(lengths, center),
                    **{w: sliced((("without", 2950), ("with", 2050)), center) for w in ("not", "but", "although")},
                },
                "curves": {
                    "train/accuracy": curve(0.6, center + 0.02),
                    "val/accuracy": curve(0.62, center),
                    "train/loss": curve(0.7, 0.3),
                    "val/loss": curve(0.7, 0.36),
                },
            }
        )
    pairs = []
    for i, (one, other) in enumerate(itertools.pairwise(names)):
        verdict = ("better", "undecided", "worse")[i % 3]
        difference = (0.0187, 0.0012, -0.0089)[i % 3]
        words = f"{other} against {one}: {verdict} by {100 * abs(difference):.1f} points"
        pairs.append(
            {
                "from": one,
                "to": other,
                "about": "architectures" if len(seeds) > 1 else "two trained models",
                "difference": difference,
                "interval": [difference - 0.005, difference + 0.0061],
                "only_to_right": 321.5,
                "only_from_right": 227.0,
                "mcnemar_p": (0.00001, 0.31, 0.008)[i % 3],
                "holm_p": (0.00002, 0.31, 0.016)[i % 3],
                "verdict": verdict,
                "words": words,
            }
        )
    disagreements = [
        {
            "row": 17 + row,
            "label": labels[row % 2],
            "text": text,
            "probability": {name: (i + 0.5) / len(names) for i, name in enumerate(names)},
            "spread": 0.9,
        }
        for row in range(3)
    ]
    environment = {"python": "3.11.7", "platform": "Linux", "cpus": 2, "threads": 1, "gpu": None}
    return {
        "split": split,
        "test_set": "packaged: every fifth block",
        "fingerprint": "fc45bb824bf15091",
        "items": "reviews",
        "unit": "words",
        "one_validation": True,
        "reviews": 5000,
        "labels": list(labels),
        "environments": [environment | {"torch": "2.13.0", "lightning": "2.6.6"}],
        "folders": ["runs"],
        "skipped": [{"folder": "runs/broken", "reason": "it has no metrics.json"}],
        "method": {"resamples": 10000, "seed": 0, "level": 0.95, "words": {"although": ["although", "though"]}},
        "untested": [],
        "rungs": rungs,
        "pairs": pairs,
        "disagreements": disagreements,
    }


class Page(HTMLParser):
    """The tags, the attributes and the text of a page, style left out."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:  # <meta> and <img> have no end
            pass

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def words(source: str) -> str:
    return " ".join(" ".join(Page(source).text).split())


def drawn_page(comparison) -> str:
    return report.page(comparison, dict.fromkeys(figures.figures(comparison), SVG))


def markdown_tables(source: str) -> list[list[list[str]]]:
    """The cells of each table; a | behind a backslash does not end a cell."""
    tables: list[list[list[str]]] = [[]]
    for line in source.splitlines():
        if line.startswith("|"):
            tables[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif tables[-1]:
            tables.append([])
    return [table for table in tables if table]


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are not drawn, which takes a second or two; all else is as it is."""
    monkeypatch.setattr(report, "svg", lambda _: SVG)
    monkeypatch.setattr(report, "png", lambda _: b"PNG")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A comparison of three rungs, and the folder into which it was written."""
    comparison = made_up()
    page = report.write_all(comparison, tmp_path_factory.mktemp("reports") / "new" / "folder")
    assert page.name == "comparison.html"
    return comparison, page.parent


def test_everything_is_written_and_nothing_else(three):
    names = ("accuracies", "differences", "time", "curves_accuracy", "curves_loss", "reliability")
    found = {str(path.relative_to(three[1])) for path in three[1].rglob("*") if path.is_file()}
    tables = {"comparison.json", "comparison.md", "comparison.html"}
    assert found == tables | {f"figures/{name}.png" for name in names}


def test_json_holds_the_numbers_as_they_are(three):
    comparison, folder = three
    assert json.loads((folder / "comparison.json").read_text()) == comparison


def test_the_page_loads_nothing(three):
    source = (three[1] / "comparison.html").read_text()
    page = Page(source)
    loads = [value for name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert len(loads) == page.tags.count("img") == 6
    assert all(value.startswith("data:image/svg+xml;base64,") for value in loads)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    for value in loads:  # neither do the pictures
        picture = base64.b64decode(value.partition(",")[2]).decode()
        assert all(place.startswith(("#", "data:")) for place in re.findall(r'href="([^"]*)"', picture))


def test_every_table_scrolls_and_has_a_shade_where_columns_are_hidden(three):
    source = (three[1] / "comparison.html").read_text()
    assert source.count('<div class="scroll"><table') == source.count("<table") >= 6
    rule = re.search(r"\.scroll \{([^}]*)\}", source)[1]
    assert "overflow-x: auto" in rule
    assert rule.count("var(--shade)") == 2


def test_review_text_stays_text(three):
    page = Page((three[1] / "comparison.html").read_text())
    assert "".join(page.text).count(HOSTILE) == 3
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_names_of_rungs_labels_and_files_stay_text(tmp_path, capsys, monkeypatch):
    names = ("<u>one</u> $a_{$", "[red]two|`c`*d*", 'three" onclick="x"')
    comparison = made_up(names, labels=("<u>neg", "pos|`x`"), text=None)
    comparison["skipped"] = [{"folder": "runs/<u>", "reason": "<u>no</u> | metrics"}]
    folder = report.write_all(comparison, tmp_path).parent  # matplotlib would take $a_{$ for a formula, and a wrong one
    page = Page((folder / "comparison.html").read_text())
    assert "u" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for text in (*names, *comparison["labels"], "<u>no</u> | metrics"):
        assert text in "".join(page.text)
    source = (folder / "comparison.md").read_text()
    assert "<u>" not in re.sub(r"`[^`]*`", "", source).replace("\\<", "")
    for table in markdown_tables(source):
        assert len({len(line) for line in table}) == 1
    monkeypatch.setenv("COLUMNS", "120")
    report.print_terminal(comparison)
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_markdown_shows_the_same_table(three):
    comparison, folder = three
    rungs, pairs, *_ = markdown_tables((folder / "comparison.md").read_text())
    head, *lines = report.rung_table(comparison)
    assert rungs[0] == head
    assert [line[1:] for line in rungs[2:]] == [line[1:] for line in lines]
    assert [line[0] for line in rungs[2:]] == ["`mean`", "`base`", "`residual`"]
    assert pairs[2:] == [
        ["`base against mean`", "+1.9", "+1.4 to +2.5", "better", "p \\< 0.001", "322", "227"],
        ["`residual against base`", "+0.1", "−0.4 to +0.7", "undecided", "p = 0.310", "322", "227"],
    ]


def test_the_page_states_the_result_in_words(three):
    comparison, folder = three
    text = words((folder / "comparison.html").read_text())
    best = comparison["rungs"][-1]
    low, high = (f"{100 * end:.1f}" for end in best["interval"])
    sentence = f"reaches {100 * best['test']['mean']:.1f} % on the test set ({low} to {high})"
    assert f"residual, the best of 3 by validation, {sentence}" in text
    assert "Of 2 comparisons: 1 better, 1 undecided." in text
    for told in (*(pair["words"] for pair in comparison["pairs"]), "fc45bb824bf15091", "torch 2.13.0", "runs/broken"):
        assert told in text
    assert "base against mean +1.9 +1.4 to +2.5 better p < 0.001" in text
    assert "residual against base +0.1 −0.4 to +0.7 undecided p = 0.310" in text


def test_the_best_rung_is_chosen_by_validation_not_by_test():
    comparison = made_up()
    comparison["rungs"][0]["test"]["mean"] = 0.99
    assert report.headline(comparison).startswith("residual, the best of 3 by validation")


def test_one_rung_with_one_seed():
    comparison = made_up(("residual",), seeds=(1,))
    head, line = report.rung_table(comparison)
    shown = dict(zip(head, line, strict=True))
    assert shown["seeds"] == "1 seed"
    assert shown["test %"] == f"{100 * comparison['rungs'][0]['test']['mean']:.1f}"
    assert "±" not in "".join(line)
    assert set(figures.figures(comparison)) == {
        "accuracies",
        "curves_accuracy",
        "curves_loss",
        "reliability",
    }
    text = words(drawn_page(comparison))
    assert "Differences" not in text
    assert "A rung with one seed has no standard deviation" in text


def test_what_was_not_measured_is_omitted():
    comparison = made_up(split="validation", labels=("bad", "so so", "good"))
    for rung in comparison["rungs"]:
        rung.update(curves={}, parameters=None, tokens_per_s=None, train_seconds=None, epochs=None)
    assert set(figures.figures(comparison)) == {"accuracies", "differences", "reliability"}
    assert report.rung_table(comparison)[0] == [
        *("rung", "seeds", "validation %", "95 % interval", "validation macro F1 %")
    ]
    text = words(drawn_page(comparison))
    assert "Learning curves" not in text
    assert "on the validation set" in text
    comparison["rungs"][0]["train_seconds"] = 3.0  # of one rung alone there is nothing to compare
    assert "time" not in figures.figures(comparison)
    comparison["rungs"][2]["train_seconds"] = 5.0
    named = figures.time_and_accuracy(comparison).axes[0].get_legend().get_texts()
    assert [text.get_text() for text in named] == ["residual", "mean"], "in the order of accuracy"


@pytest.mark.slow
def test_a_run_that_diverged_does_not_stop_the_comparison(tmp_path):
    comparison = made_up(("mean", "base"))
    nan = float("nan")
    comparison["rungs"][0] |= {"ece": nan, "reliability": [{"confidence": nan, "accuracy": 0.5, "count": 5000.0}]}
    comparison["rungs"][0]["curves"]["val/loss"]["values"] = [[nan] * 8] * 3
    page = report.write_all(comparison, tmp_path)
    rung = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)["rungs"][0]
    assert rung["ece"] is None
    assert rung["curves"]["val/loss"]["values"] == [[None] * 8] * 3
    assert page.exists()


def test_nothing_is_half_written(undrawn, tmp_path, monkeypatch):
    report.write_all(made_up(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fails(*_):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(report, "page", fails)
    with pytest.raises(RuntimeError):
        report.write_all(made_up(("base", "mean")), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_figures_of_an_earlier_comparison_are_removed(undrawn, tmp_path):
    report.write_all(made_up(("mean", "base")), tmp_path)
    (tmp_path / "figures" / "mine.png").touch()
    comparison = made_up(("mean",))
    for rung in comparison["rungs"]:
        rung["curves"] = {}
    report.write_all(comparison, tmp_path)
    left = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert left == {"accuracies", "reliability", "mine"}


def test_a_folder_that_cannot_be_written_gives_a_message_of_one_line(undrawn, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        report.write_all(made_up(("mean",)), tmp_path / "file" / "out")


LADDER = ("mean", "learned_query", "base", "residual_learned", "residual_pe_cls", "residual_pe Dot width=64")


@pytest.mark.parametrize("columns", [80, 100])
def test_the_terminal_shows_whole_names_and_numbers(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    comparison = made_up(LADDER)
    report.print_terminal(comparison)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    head, *rows = report.rung_table(comparison)
    shown = [place for place, name in enumerate(head) if name not in report.PAGE_ONLY]
    assert len(shown) == 6
    for row in rows:
        assert any(line.split() == " ".join(row[place] for place in shown).split() for line in lines)
    for told in (comparison["pairs"][0]["words"], "fingerprint fc45bb824bf15091", "runs/broken"):
        assert told in " ".join(text.split())


@pytest.mark.parametrize("columns", [40, 80, 90, 100])
def test_a_table_that_is_wider_than_the_terminal_is_printed_in_full(columns):
    head = ["rung", "seeds", "validation %", "test % over 3 folds", "test %", "95 % interval", "macro F1 %", "training"]
    row = ["residual_pe layers=6", "2", "53.3 ± 5.7", "54.1 ± 3.4", "54.1 ± 6.1", "28.8–79.3", "38.9 ± 4.1", "0.3 s"]
    console = terminal(file=io.StringIO(), width=columns)
    report.print_table([head, row], console)
    text = console.file.getvalue()
    assert all(cell in text for cell in (*head, *row[0].split(), *row[1:]))
    assert console.width == columns


def printed(*comparisons) -> str:
    console = terminal(file=io.StringIO(), width=400)
    report.print_terminal(*comparisons, console=console)
    return console.file.getvalue()


def test_notes_are_about_what_is_shown():
    comparison = made_up()
    page = drawn_page(comparison)
    for note, on_page_only in (("Slices: “although” is any of although, though.", True), ("± is the standard", False)):
        assert note in page
        assert note in report.markdown(comparison, ())
        assert (note in printed(comparison)) != on_page_only
        assert (note in report_in_notebook(comparison)) != on_page_only


def test_notes_on_rungs_with_one_seed_do_not_mention_the_spread_of_seeds():
    for text in (printed(made_up(seeds=(1,))), drawn_page(made_up(seeds=(1,)))):
        assert "from 10,000 resamples of the test reviews (seed 0).\n" in text.replace("</p>", "\n")
        assert "±" not in text
        assert "widened" not in text
    assert "comparisons with it are about that trained model" in printed(made_up(seeds=(1,)))
    assert "comparisons with it" not in printed(made_up(("mean",), seeds=(1,)))


@pytest.mark.parametrize("names", [("mean",), ("mean", "base")])
def test_the_terminal_has_single_blank_lines(names):
    assert "\n\n\n" not in printed(made_up(names))


def test_notes_that_several_sets_have_in_common_are_printed_once():
    sets = [made_up(), made_up(("mean", "base")) | {"fingerprint": "f2"}]
    text = printed(*sets)
    for note in ("Intervals are", "Run on Linux"):
        assert text.count(note) == 1
        assert text.index(note) > text.index(" all sets ") > text.index("fingerprint f2.")
    assert [text.count(f"corrected for {count} comparison") for count in (1, 2)] == [1, 1]
    assert text.index("corrected for 2") < text.index("fingerprint f2") < text.index("corrected for 1")


def test_percent_is_written_with_a_space(undrawn, tmp_path):
    comparison = made_up()
    shown = [
        text.get_text()
        for figure in figures.figures(comparison).values()
        for text in figure.findobj(lambda one: hasattr(one, "get_text"))
    ]
    page = report.write_all(comparison, tmp_path)
    for text in (*shown, words(page.read_text()), page.with_suffix(".md").read_text(), printed(comparison)):
        assert not re.search(r"\d%", text)
    assert re.search(r"from \d+\.\d % by mean to \d+\.\d % by residual", words(page.read_text()))


def test_the_figure_of_accuracies_has_means_intervals_and_seeds():
    comparison = made_up()
    lines = figures.accuracies(comparison).axes[0].lines
    for row, rung in enumerate(comparison["rungs"]):
        interval, mean, seeds = (list(line.get_xdata()) for line in lines[3 * row : 3 * row + 3])
        assert interval == pytest.approx([100 * end for end in rung["interval"]])
        assert mean == pytest.approx([100 * rung["test"]["mean"]])
        assert seeds == pytest.approx([100 * value for value in rung["test"]["values"]])


def test_differences_are_colored_by_their_verdict():
    comparison = made_up(("a", "b", "c", "d"))
    lines = figures.differences(comparison).axes[0].lines[1:7:2]
    assert [line.get_color() for line in lines] == [figures.BLUE, figures.GREY, figures.ORANGE]
    assert list(lines[2].get_xdata()) == pytest.approx([-1.39, -0.28])


def test_a_band_covers_the_seeds_that_reached_an_epoch():
    curve = {"epochs": [1, 2, 3, 4], "values": [[0.5, 0.6, None, None], [0.7, 0.8, 0.9, float("nan")], [0.6]]}
    epochs, mean, low, high = figures.band(curve, 100)
    assert epochs == [1, 2, 3]
    assert (mean, low, high) == (
        pytest.approx([60, 70, 90]),
        pytest.approx([50, 60, 90]),
        pytest.approx([70, 80, 90]),
    )


def test_the_same_comparison_gives_the_same_picture():
    assert svg(figures.accuracies(made_up())) == svg(figures.accuracies(made_up()))


def test_comparisons_of_one_seed_each_are_counted_separately():
    comparison = made_up(("a", "b", "c", "d"))
    assert report.verdicts(comparison) == "Of 3 comparisons: 1 better, 1 worse, 1 undecided."
    comparison["pairs"][0]["about"] = "two trained models"
    assert "Comparisons with one seed each (1 of 3) are about two trained models" in report.verdicts(comparison)


@pytest.mark.parametrize("epochs", [1, 2, 8])
def test_epochs_have_whole_ticks(epochs):
    comparison = made_up()
    for rung in comparison["rungs"]:
        rung["curves"] = {
            name: {"epochs": curve["epochs"][:epochs], "values": [seed[:epochs] for seed in curve["values"]]}
            for name, curve in rung["curves"].items()
        }
    ticks = {tick for axes in figures.curves_of_seeds(comparison, "loss").axes for tick in axes.get_xticks()}
    assert all(tick == round(tick) for tick in ticks)
    assert set(range(1, epochs + 1)) & ticks


def test_a_pair_has_one_name_and_negative_numbers_have_a_minus_sign(tmp_path, undrawn, capsys, monkeypatch):
    for model, accuracy in (("mean", 0.7), ("base", 0.8), ("residual", 0.79), ("residual_pe", 0.7)):
        for seed in (1, 2):
            write_run(tmp_path / "runs" / f"{model}-{seed}", model, seed, accuracy)
    comparison, *_ = compare_sets([tmp_path / "runs"], resamples=200)
    page = report.write_all(comparison, tmp_path / "out")
    monkeypatch.setenv("COLUMNS", "200")
    report.print_terminal(comparison)
    names = [f"{pair['to']} against {pair['from']}" for pair in comparison["pairs"]]
    assert {pair["difference"] < 0 for pair in comparison["pairs"]} == {True, False}
    for text in (words(page.read_text()), page.with_suffix(".md").read_text(), capsys.readouterr().out):
        text = text.replace(str(tmp_path), "").replace("\\", "")
        assert "−" in text
        assert not re.search(r"(?<![\w.-])-\d", text)
        assert not re.search("→| beats | falls behind ", text)
        assert all(name in text for name in names)


def test_numbers_in_words():
    assert [report.count(value) for value in (31102, 78123.4, 905.6, None)] == ["31,102", "78,100", "906", ""]
    assert [report.duration(s) for s in (2.94, 119, 180, 5400, 8000)] == [
        "2.9 s",
        "119.0 s",
        "3.0 min",
        "90.0 min",
        "2.2 h",
    ]


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0002, "p < 0.001"),
        (0.016, "p = 0.016"),
        (0.0499, "p = 0.0499"),
        (0.04999999, "p = 0.04999999"),
        (0.05, "p = 0.050"),
        (0.0503, "p = 0.050"),
        (1.0, "p = 1.000"),
    ],
)
def test_a_printed_p_value_is_on_the_same_side_of_the_level_as_the_value(p, text):
    assert report.p_value(p) == text
    assert p < 0.001 or (float(text[4:]) < 0.05) == (p < 0.05)


def test_a_real_comparison_becomes_a_page(tmp_path):
    for model, accuracy in (("mean", 0.7), ("base", 0.8)):
        for seed in (1, 2):
            write_run(tmp_path / "runs" / f"{model}-{seed}", model, seed, accuracy)
    comparison, *_ = compare_sets([tmp_path / "runs"], resamples=200, words={"not": ["not", "n't"]})
    page = report.write_all(comparison, tmp_path / "out")
    text = words(page.read_text())
    assert comparison["pairs"][0]["words"] in text
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == comparison
    report.print_terminal(comparison)


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """decoded(models, ranges, ...): the comparison of encoder-decoders with two seeds each, that many of each."""

    def make(models=("seq2seq", "seq2seq_attention"), ranges=((1, 5), (1, 10)), **metrics):
        folder = tmp_path_factory.mktemp("decoded")
        for model in models:
            for place, lengths in enumerate(ranges):
                for seed in (1, 2):
                    reach = lengths[1] * (1 + len(model) / 20)
                    write_decoded(folder / f"{model}{place}{seed}", model, seed, reach, lengths, **metrics)
        return compare_sets([folder], resamples=200, words={"not": ["not", "n't"]})[0]

    return make


def test_the_page_of_encoder_decoders_names_their_items(decoded, undrawn, tmp_path, capsys):
    comparison = decoded()
    source = report.write_all(comparison, tmp_path).read_text()
    report.print_terminal(comparison)
    for text in (words(source), (tmp_path / "comparison.md").read_text(), capsys.readouterr().out):
        assert "review" not in text.lower()
        assert "strings" in text
    assert "Confusion" not in words(source)
    assert "The probability that each rung gives the string's first reference" in words(source)
    assert "the share of strings for which the output is exactly a reference" in words(source)
    assert "not, n't" not in words(source), "no slice is of these words"
    first = comparison["disagreements"][0]
    assert f"{first['label']}:" in words(source).replace(" :", ":")
    assert first["text"] in words(source)


def test_figures_of_encoder_decoders_show_accuracy_by_length(decoded):
    drawn = figures.figures(decoded())
    shown = [
        text.get_text() for figure in drawn.values() for text in figure.findobj(lambda one: hasattr(one, "get_text"))
    ]
    assert not [text for text in shown if "review" in text]
    assert "Accuracy on 400 test strings" in shown


def test_each_range_of_training_has_a_panel_with_a_line_for_each_model(decoded):
    comparison = decoded()
    figure = figures.lengths(comparison)
    assert [axes.get_title() for axes in figure.axes] == [
        "trained on lengths 1 to 5 (shaded)",
        "trained on lengths 1 to 10 (shaded)",
    ]
    for panel, axes in enumerate(figure.axes):
        shaded = axes.patches[0]
        assert (shaded.get_x(), shaded.get_width()) == (0.5, (5, 10)[panel])
        for line, rung in zip(axes.lines[:2], comparison["rungs"][panel::2], strict=True):
            assert list(line.get_xdata()) == list(range(1, 21))
            assert list(line.get_ydata()) == pytest.approx([50 * sum(one["accuracies"]) for one in rung["lengths"]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["seq2seq", "seq2seq_attention"]


def test_many_variants_have_different_lines(decoded):
    names = [f"model_{letter}" for letter in "abcdefghi"]
    figure = figures.lengths(decoded(names, ((1, 10),)))
    lines = [(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in figure.axes[0].lines]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert len(set(lines)) == 9


@pytest.mark.parametrize("split", ["test", "validation"])
def test_bleu_has_a_column_if_runs_have_it(decoded, split):
    scores = {"val_bleu": 41.25, "test_bleu": 38.5} if split == "test" else {"val_bleu": 41.25}
    comparison = decoded(("seq2seq",), ((1, 5),), items="sentences", **scores)
    head, line = report.rung_table(comparison)
    assert (
        dict(zip(head, line, strict=True))[f"{split} BLEU"] == {"test": "38.5 ± 0.0", "validation": "41.2 ± 0.0"}[split]
    )
    assert "from 0 to 100" in " ".join(report.notes(comparison))
    assert not any("BLEU" in name for name in report.rung_table(made_up())[0])


def test_an_easy_validation_set_does_not_choose_the_best(decoded):
    comparison = decoded()
    comparison["rungs"][0]["validation"]["mean"] = 1.0  # trained and validated on the shortest strings
    said = report.headline(comparison)
    assert said.startswith("seq2seq_attention lengths=[1, 10], the best of 4 by test,")
    assert said.endswith("biased upwards, because the same set selected this rung")
    assert any("cannot be compared" in note for note in report.notes(comparison))
    assert not any("cannot be compared" in note for note in report.notes(made_up()))


def test_curves_of_accuracy_name_what_is_counted():
    comparison = made_up()
    legend = [text.get_text() for text in figures.curves_of_seeds(comparison, "accuracy").legends[0].get_texts()]
    assert legend[:2] == ["validation", "training"]
    comparison |= {"items": "strings", "labels": []}  # its training counts single symbols, its validation whole strings
    legend = [text.get_text() for text in figures.curves_of_seeds(comparison, "accuracy").legends[0].get_texts()]
    assert legend[:2] == ["validation, whole strings", "training, single symbols"]
    for rung in comparison["rungs"]:
        rung["confusion"] = []
    assert "counts single symbols" in words(drawn_page(comparison))
    assert "counts single symbols" not in words(drawn_page(made_up()))


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("residual_pe Dot width=64", ["residual_pe Dot width=64"]),
        ("seq2seq_attention_additive", ["seq2seq_attention_", "additive"]),
        ("against seq2seq_bahdanau_bilinear", ["against seq2seq_", "bahdanau_bilinear"]),
        ("x" * 30, ["x" * 24, "x" * 6]),
    ],
)
def test_a_long_name_is_wrapped_between_its_parts(label, lines):
    assert figures.wrapped(label).split("\n") == lines
