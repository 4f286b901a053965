"""Data sets as people have them: of the hub, of save_to_disk, compressed, or two aligned files."""

import bz2
import gzip
import lzma
import os
import shutil
from unittest import mock

import datasets
import pytest

from imdbattn.data.corpus import find_source
from imdbattn.data.pairs import load_pairs
from imdbattn.data.sources import pairs
from imdbattn.data.sources.hub import IMDB_REVISION, load_hub
from imdbattn.data.splits import cut_reviews
from imdbattn.errors import UserError
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.task import task_of
from tests.documents import train_command
from tests.world import write_files

WORDS = {0: "bad", 1: "good"}


def split_of(name: str, count: int = 40, **columns: str) -> datasets.Dataset:
    """A split whose labels are a ClassLabel; columns: other names of text and label."""
    text, label = columns.get("text", "text"), columns.get("label", "label")
    rows = {
        text: [f"the film was {WORDS[n % 2]} {name}{n}" for n in range(count)],
        label: [n % 2 for n in range(count)],
    }
    features = datasets.Features(
        {text: datasets.Value("string"), label: datasets.ClassLabel(names=["neg", "pos"])}
    )
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture
def hub(monkeypatch):
    """hub(DatasetDict): what load_dataset returns for somebody/reviews."""

    def serve(dataset):
        def load(place, **options):
            assert (place, options) == ("somebody/reviews", {"name": "plain"})
            return dataset

        monkeypatch.setattr(datasets, "load_dataset", load)
        load_hub.cache_clear()
        return ["data.hub=somebody/reviews", "data.hub_config=plain"]

    return serve


def test_a_data_set_of_the_hub_trains_with_its_own_splits_and_names(settings, small, hub, tmp_path):
    names = {"text": "review", "label": "stars"}
    words = hub(
        datasets.DatasetDict(
            train=split_of("a", **names), dev=split_of("b", 20, **names), unused=split_of("c")
        )
    )
    columns = ["data.text_column=review", "data.label_column=stars", "data.path=null"]
    cfg = settings(*small, "model=mean", "trainer.max_epochs=1", *words, *columns)
    metrics = fit(cfg, tmp_path / "run")
    assert metrics["labels"] == ["neg", "pos"]
    assert metrics["val_count"] == 20
    assert "hub: somebody/reviews" in (tmp_path / "run" / "config.yaml").read_text()


def test_the_hub_gives_the_official_halves(monkeypatch, data_settings):
    def load(name, split, revision):
        assert (name, revision) == ("stanfordnlp/imdb", IMDB_REVISION)
        return split_of(split, 20)

    monkeypatch.setattr(datasets, "load_dataset", load)
    load_hub.cache_clear()
    source = find_source(data_settings("data.source=hub"))
    reviews = cut_reviews(source.load(), source.name, {"validation": 0.1, "test": 0.2})
    assert [len(reviews.splits[name]) for name in ("train", "validation", "test")] == [18, 2, 20]
    assert reviews.test_set == "IMDB official halves (hub): test"
    last = ["the film was bad train18", "the film was good train19"]
    assert reviews.splits["validation"].texts == last


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.source=hub", []),
        ("data.hub=somebody/reviews", []),
        ("data.hub=somebody/books", ["task=seq2seq", "data=translation"]),
    ],
)
def test_without_a_network_the_message_begins_with_the_setting(
    settings, monkeypatch, setting, words
):
    offline = mock.Mock(side_effect=ConnectionError("the hub cannot be reached"))
    monkeypatch.setattr(datasets, "load_dataset", offline)
    load_hub.cache_clear()
    cfg = settings(*words, setting)
    with pytest.raises(UserError, match=f"^{setting}: the hub cannot be reached"):
        task_of(cfg).find_source(cfg.data)


def test_splits_of_the_hub_can_be_named_and_wrong_ones_are_one_line(data_settings, hub):
    words = hub(datasets.DatasetDict(first=split_of("a"), second=split_of("b", 10)))
    chosen = find_source(data_settings(*words, "data.hub_splits={train:first,test:second}"))
    sizes = {name: len(part) for name, part in chosen.load().splits.items()}
    assert sizes == {"train": 40, "test": 10}
    with pytest.raises(UserError, match=r"splits first, second are none of .*data\.hub_splits"):
        find_source(data_settings(*words))


def test_a_run_with_named_splits_of_the_hub_is_scored_on_another_data_set(
    settings, small, hub, tmp_path
):
    words = hub(datasets.DatasetDict(first=split_of("a"), second=split_of("b", 10)))
    words += ["data.hub_splits={train:first,test:second}", "data.path=null"]
    fit(settings(*small, "model=mean", "trainer.max_epochs=1", *words), tmp_path / "run")
    datasets.DatasetDict(test=split_of("c", 8)).save_to_disk(tmp_path / "other")
    other = [f"run={tmp_path / 'run'}", f"data.path={tmp_path / 'other'}", "trainer=cpu"]
    assert evaluate_run(settings(*other, config="evaluate"))["count"] == 8


@pytest.mark.parametrize(
    ("texts", "labels", "missing"),
    [
        (["a", "b", None], [0, 1, 1], "text"),
        (["a", "b", "c"], [0, 1, -1], "label"),
        (["a", "b", "c"], [0, 1, None], "label"),
    ],
)
def test_a_row_of_the_hub_without_a_text_or_a_label_is_refused(
    data_settings, hub, texts, labels, missing
):
    features = split_of("a").features
    rows = {"text": texts, "label": labels}
    words = hub(datasets.DatasetDict(train=datasets.Dataset.from_dict(rows, features=features)))
    with pytest.raises(UserError, match=rf"row 2 \(counted from 0\) has no {missing}"):
        find_source(data_settings(*words)).load()


def test_splits_of_pairs_of_the_hub_are_kept_and_held_out_sources_are_removed_from_training(
    settings, hub, caplog
):
    texts = {
        "train": [*(f"number {n}" for n in range(200)), "a cat", "a dog"],
        "dev": ["a cat"],
        "test": ["a dog", "a dog", "a key"],
        "extra": ["x"],
    }
    features = datasets.Features({"translation": datasets.Translation(["en", "fr"])})
    splits = datasets.DatasetDict()
    for name, of_split in texts.items():
        rows = [{"en": f"I see {text}.", "fr": f"Je vois {text}."} for text in of_split]
        splits[name] = datasets.Dataset.from_dict({"translation": rows}, features=features)
    cfg = settings("task=seq2seq", "data=translation", *hub(splits))
    corpus = load_pairs(cfg.data)
    assert "somebody/reviews: not used: extra" in caplog.messages
    assert corpus.splits["validation"].texts == ["i see a cat ."]
    assert corpus.splits["test"].texts == ["i see a dog .", "i see a key ."]
    assert (len(corpus.splits["train"]), corpus.facts["dropped"]) == (200, 2)
    assert corpus.test_set == "somebody/reviews: test"


def test_saved_data_sets_are_read_with_their_own_test_split(data_settings, tmp_path):
    split_of("a").save_to_disk(tmp_path / "one")
    whole = find_source(data_settings(f"data.path={tmp_path}/one"))
    assert list(whole.load().splits) == [""]
    both = datasets.DatasetDict(train=split_of("a"), test=split_of("b", 10))
    both.save_to_disk(tmp_path / "both")
    source = find_source(data_settings(f"data.path={tmp_path}/both"))
    splits = source.load().splits
    assert splits["test"].texts == both["test"]["text"][:]
    assert splits["train"].labels.tolist() == both["train"]["label"][:]


def test_data_that_were_copied_elsewhere_are_the_same_and_edited_ones_are_not(
    data_settings, tmp_path
):
    """Otherwise a sweep would repeat its jobs, or a run would use other reviews from the cache."""
    files = {"pos/0_1.txt": "a good film", "neg/0_1.txt": "a bad film"}
    write_files(tmp_path / "texts" / "train", files)
    write_files(tmp_path / "tables", {"train.csv": TABLE})
    split_of("a").save_to_disk(tmp_path / "saved")

    def keys(folder):
        paths = [folder / name for name in ("texts", "tables", "saved")]
        return [find_source(data_settings(f"data.path={path}")).key for path in paths]

    shutil.copytree(tmp_path, tmp_path / "copy", copy_function=shutil.copyfile)
    assert keys(tmp_path / "copy") == keys(tmp_path)
    text = tmp_path / "copy" / "texts" / "train" / "pos" / "0_1.txt"
    times = text.stat()
    text.write_text("a cool film")
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert keys(tmp_path / "copy")[0] != keys(tmp_path)[0]


TABLE = "text,label\n" + "".join(f'"film {n}, {WORDS[n % 2]}",{n % 2}\n' for n in range(30))
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def splits_at(data_settings, path):
    return find_source(data_settings(f"data.path={path}")).load().splits


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_tables_are_read_as_the_table_in_them(data_settings, tmp_path, suffix):
    (tmp_path / "r.csv").write_text(TABLE)
    folder = tmp_path / "splits"
    folder.mkdir()
    for name in ("Train", "test"):
        (folder / f"{name}.csv{suffix}").write_bytes(PACK[suffix](TABLE.encode()))
    plain = splits_at(data_settings, tmp_path / "r.csv")[""]
    splits = splits_at(data_settings, folder)
    assert list(splits) == ["train", "test"]
    assert splits["test"].texts == plain.texts
    assert splits["test"].labels.tolist() == plain.labels.tolist()
    damaged = tmp_path / f"cut.csv{suffix}"
    damaged.write_bytes(PACK[suffix](TABLE.encode())[:-12])
    with pytest.raises(UserError, match=str(damaged)):
        splits_at(data_settings, damaged)


def test_a_sheet_of_excel_is_read_as_its_csv(data_settings, tmp_path):
    pytest.importorskip("openpyxl")
    import pandas as pd

    (tmp_path / "r.csv").write_text(TABLE)
    table = pd.read_csv(tmp_path / "r.csv")
    table.to_excel(tmp_path / "r.xlsx", index=False)
    plain, sheet = (splits_at(data_settings, tmp_path / name)[""] for name in ("r.csv", "r.xlsx"))
    assert sheet.texts == plain.texts
    assert sheet.labels.tolist() == plain.labels.tolist()


def write_sides(folder, count=60, **more):
    folder.mkdir(exist_ok=True)
    for name, lines in {"train": count, **more}.items():
        for language, word in (("en", "number"), ("fr", "numéro")):
            text = "".join(f"{word} {name} {n}\n" for n in range(lines))
            (folder / f"{name}.{language}").write_text(text, "utf-8")
    return folder


def pairs_at(settings, folder, *overrides):
    """The splits of a folder of sentences."""
    cfg = settings("task=seq2seq", "data=translation", f"data.path={folder}", *overrides)
    return pairs.find_pair_source(cfg.data).load().splits


def test_two_aligned_files_for_each_split_are_read(settings, tmp_path):
    folder = write_sides(tmp_path / "moses", val=10, test=12)
    splits = pairs_at(settings, folder)
    sizes = {name: len(split) for name, split in splits.items()}
    assert sizes == {"train": 60, "validation": 10, "test": 12}
    assert splits["test"].texts[3] == "number test 3"
    assert splits["test"].labels[3] == ["numéro test 3"]
    swapped = pairs_at(settings, folder, "data.languages=[fr,en]")
    assert swapped["test"].texts[3] == "numéro test 3"
    (folder / "train.fr.gz").write_bytes(gzip.compress((folder / "train.fr").read_bytes()))
    (folder / "train.fr").unlink()
    assert pairs_at(settings, folder)["train"].labels == splits["train"].labels


def test_files_that_are_not_aligned_are_refused(settings, tmp_path):
    folder = write_sides(tmp_path / "a")
    with open(folder / "train.fr", "a") as file:
        file.write("one more\n")
    with pytest.raises(UserError, match=r"train\.fr has more lines than"):
        pairs_at(settings, folder)
    (folder / "train.fr").write_text("un\n\n" + 58 * "trois\n")
    with pytest.raises(UserError, match=r"row 1 .* has an empty target"):
        pairs_at(settings, folder)
    folder = write_sides(tmp_path / "b", test_2016_flickr=5)
    with pytest.raises(UserError, match=r"test_2016_flickr\.en is not named as a split"):
        pairs_at(settings, folder)


PAIRS = ("model=seq2seq", "data.min_known=0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "word", "own"),
    [
        (
            "## Data sets of the hub and of `datasets`",
            "my_saved_dataset",
            ("model=mean", "data.min_known=0.1", "data.vectors.dim=10"),
        ),
        ("## Pairs of sentences", "moses", PAIRS),
        ("## Pairs of sentences", "cmn.txt", PAIRS),
    ],
)
def test_the_commands_of_the_page_train(shell, world, tmp_path, heading, word, own):
    names = {"text": "review", "label": "stars"}
    splits = {"train": split_of("a", 60, **names), "test": split_of("b", 20, **names)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "my_saved_dataset")
    write_sides(tmp_path / "moses", 100, val=20, test=20)
    pairs = "".join(f"number {n} .\t数{n}\n" for n in range(100))
    (tmp_path / "cmn.txt").write_text(pairs, "utf-8")
    words = [*train_command(heading, word), *own, "trainer.max_epochs=1", "logger=csv"]
    words += ["trainer=cpu", "pictures=false", "hydra.run.dir=run"]
    if word == "my_saved_dataset":
        words.append(f"data.vectors.path={world}/vectors.txt")
    shell("train", *words, cwd=tmp_path)
    assert (tmp_path / "run" / "metrics.json").exists()
