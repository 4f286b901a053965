"""Commands of docs/own_data.md train on data of the form that they name."""

import gzip
import random
import shlex
from importlib.util import find_spec

import datasets
import numpy as np
import pytest

from tests.documents import section

pytestmark = pytest.mark.slow
QUICK = ("model=mean", "trainer.max_epochs=1", "logger=csv", "trainer=cpu", "pictures=false")
ENGLISH = ("good", "bad", "film", "the", "was")
CHINESE = ("好看", "无聊", "电影", "演员", "很")


def command(heading: str, word: str) -> list[str]:
    """The words of the train command in a section that contains a word."""
    lines = section("own_data.md", heading).splitlines()
    (line,) = [one for one in lines if one.startswith("python -m imdbattn.train") and word in one]
    return shlex.split(line)[3:]


@pytest.fixture
def folder(tmp_path):
    """A folder with the data of these commands."""
    rng, draw = np.random.default_rng(0), random.Random(0)
    for name, words in (("english", ENGLISH), ("chinese", CHINESE)):
        lines = "".join(f"{word} {' '.join(map(str, rng.normal(size=5)))}\n" for word in words)
        text = f"{len(words)} 5\n{lines}".encode()
        (tmp_path / f"{name}.vec").write_bytes(text)
        (tmp_path / f"{name}.vec.gz").write_bytes(gzip.compress(text))
    rows = [
        f"{CHINESE[n % 2]}{''.join(draw.choices(CHINESE[2:], k=5))}{n},{n % 2}" for n in range(60)
    ]
    (tmp_path / "chinese.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    pairs = "".join(f"number {n} .\t数{n}\n" for n in range(100))
    (tmp_path / "cmn.txt").write_text(pairs, "utf-8")
    (tmp_path / "moses").mkdir()
    for split, size in (("train", 100), ("val", 20), ("test", 20)):
        for language in ("en", "fr"):
            lines = "".join(f"word {n} {split}\n" for n in range(size))
            (tmp_path / "moses" / f"{split}.{language}").write_text(lines)
    datasets.DatasetDict(train=table(60, "a"), test=table(20, "b")).save_to_disk(
        tmp_path / "my_saved_dataset"
    )
    (tmp_path / "mycut.py").write_text(
        "import re\n\ndef lcut(text):\n"
        f"    return re.findall({'|'.join(CHINESE)!r} + r'|\\w', text)\n",
        "utf-8",
    )
    return tmp_path


def table(count: int, name: str) -> datasets.Dataset:
    features = datasets.Features(
        {"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=["neg", "pos"])}
    )
    texts = [f"the film was {ENGLISH[n % 2]} {name}{n}" for n in range(count)]
    rows = {"review": texts, "stars": [n % 2 for n in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def run(shell, folder, *words):
    done = shell("train", *words, "hydra.run.dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "metrics.json").exists()


def test_a_saved_data_set_trains(shell, folder):
    words = command("## Data sets of the hub and of `datasets`", "my_saved_dataset")
    run(shell, folder, *words, *QUICK, "data.vectors.path=english.vec", "data.min_known=0.1")


def test_chinese_reviews_train_with_jieba_or_a_callable_in_its_place(shell, folder):
    words = command("## Chinese reviews", "jieba")
    if find_spec("jieba") is None:
        words = [word.replace("jieba.lcut", "mycut.lcut") for word in words]
    run(shell, folder, *words, *QUICK)


@pytest.mark.parametrize("word", ["moses", "cmn.txt"])
def test_pairs_train(shell, folder, word):
    words = command("## Pairs of sentences", word)
    quick = [word for word in QUICK if not word.startswith("model=")]
    run(shell, folder, *words, *quick, "model=seq2seq", "data.min_known=0")
