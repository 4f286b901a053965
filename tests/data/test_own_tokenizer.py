"""A callable of one's own splits texts, and is called only if it is trusted."""

import gzip
import random
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import imdbattn
from imdbattn.data.corpus import load_reviews
from imdbattn.data.custom_tokenizer import CustomTokenizer
from imdbattn.data.symbols import joined_symbols, split_text, symbols_of
from imdbattn.data.tokenizer import UNK, Tokenizer
from imdbattn.errors import UserError
from imdbattn.launch.job import has_current_results
from imdbattn.runs.fit import fit
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.documents import train_command
from tests.resuming import stops

GOOD, BAD = ("好看", "喜欢", "精彩"), ("无聊", "失望", "糟糕")
NEUTRAL = ("电影", "演员", "我", "很", "的")
WORDS = (*GOOD, *BAD, *NEUTRAL)
SOURCE = """
import re

def cut(text, longest=2):
    words = "好看 喜欢 精彩 无聊 失望 糟糕 电影 演员 我 很 的".split()
    return re.findall("|".join(words) + r"|\\\\w+|[^\\\\s…]", text)

def lowered(text):
    return text.lower().split()

def capitals(text):
    return text.upper().split()

def wrong(text):
    return [1]
"""


@pytest.fixture
def package(own_module):
    return own_module("zhcut", SOURCE.replace("\\\\", "\\")).parent


@pytest.fixture
def chinese(tmp_path):
    """Overrides of Chinese reviews without spaces, and word2vec vectors of their words."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    rows = []
    for n in range(120):
        words = draw.choices(NEUTRAL, k=4) + draw.choices((BAD, GOOD)[n % 2], k=5)
        draw.shuffle(words)
        rows.append(f"{''.join(words)}{n}。,{n % 2}")
    (tmp_path / "chinese.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    vectors = "".join(f"{w} {' '.join(map(str, rng.normal(size=8)))}\n" for w in WORDS)
    (tmp_path / "chinese.vec").write_text(f"{len(WORDS)} 8\n{vectors}", "utf-8")
    places = [f"data.path={tmp_path}/chinese.csv", f"data.vectors.path={tmp_path}/chinese.vec"]
    own = ["data.vectors.dim=null", "+data.tokenizer._target_=zhcut.cut"]
    return [*places, *own, f"data.cache_dir={tmp_path}/c"]


def test_chinese_reviews_train_with_a_callable_and_word2vec_vectors(
    settings, small, package, chinese, tmp_path, caplog
):
    fast = ("trainer.max_epochs=12", "optim.lr=0.2", "patience=null")
    cfg = settings(*small, "model=mean", *fast, *chinese)
    metrics = fit(cfg, tmp_path / "run")
    assert metrics["test_accuracy"] > 0.9
    assert metrics["known_words"] == 1
    assert "_target_: zhcut.cut" in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"data\.tokenizer\._target_=zhcut\.cut is not trusted"):
        imdbattn.load(tmp_path / "run")
    model = imdbattn.load(tmp_path / "run", trust="zhcut")
    assert model.explain("我很喜欢的电影 x").words == ["我", "很", "喜欢", "的", "电影", "x"]
    model.predict(["……", "很"])
    assert "1 of 2 reviews have no words" in caplog.text
    model.export(tmp_path / "export")
    again = imdbattn.load(tmp_path / "export", trust="zhcut")
    assert again.predict(["我很喜欢"])[0].probability == pytest.approx(
        model.predict(["我很喜欢"])[0].probability, abs=1e-3
    )


def test_a_tokenizer_that_has_changed_since_training_is_named(
    settings, small, package, chinese, tmp_path, monkeypatch, caplog
):
    run = tmp_path / "run"
    cfg = settings(*small, "model=mean", "trainer.max_epochs=2", *chinese)
    stopping = stops(monkeypatch, ReviewClassifier)
    stopping(1, signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(cfg, run)
    stopping(None)
    file = package / "zhcut.py"
    code = file.read_text("utf-8")
    file.write_text(code.replace("return re.findall", "return text[:1] + re.findall"), "utf-8")
    with pytest.raises(UserError, match=r"was trained with other data.*tokenizer="):
        fit(cfg, run, resume=True)
    file.write_text(code, "utf-8")
    fit(cfg, run, resume=True)
    imdbattn.load(run, trust="zhcut")
    assert "its code has changed" not in caplog.text
    file.write_text(code + "# another version\n", "utf-8")
    imdbattn.load(run, trust="zhcut")
    assert "data.tokenizer=zhcut.cut: its code has changed since training" in caplog.text


def test_what_returns_no_words_is_named(package):
    with pytest.raises(UserError, match=r"returns \[1\] instead of a list of words"):
        CustomTokenizer({"_target_": "zhcut.wrong"}, WORDS).encode(["我很"])


def test_a_changed_file_of_the_callable_is_read_again_and_its_runs_are_others(
    settings, small, package, chinese, tmp_path
):
    cfg = settings(*small, "model=mean", "trainer.max_epochs=1", *chinese)
    fit(cfg, tmp_path / "run")
    first = load_reviews(cfg.data).folder
    assert has_current_results(tmp_path / "run", cfg)
    assert load_reviews(cfg.data).folder == first
    other = settings(*small, "model=mean", *chinese, "+data.tokenizer.longest=3")
    assert load_reviews(other.data).folder != first
    file = package / "zhcut.py"
    file.write_text(file.read_text("utf-8").replace("(text, longest", "(text, most"), "utf-8")
    del sys.modules["zhcut"]
    assert load_reviews(cfg.data).folder != first
    assert not has_current_results(tmp_path / "run", cfg)


def test_words_have_the_places_where_they_occur(package):
    tokenizer = CustomTokenizer({"_target_": "zhcut.cut"}, ["good", "电影"])
    text = "Good 电影 电影 ab"
    words = tokenizer.words(text)
    assert [text[word.start : word.end] for word in words] == ["Good", "电影", "电影", "ab"]
    assert [word.id for word in words] == [2, 3, 3, UNK] == tokenizer.encode([text]).ids.tolist()
    expected = ["Not", "bad", "in", "", "but", "not", "GOOD"]
    text = "Not bad in İ but not GOOD"
    words = CustomTokenizer({"_target_": "zhcut.lowered"}, ["good"]).words(text)
    assert [text[word.start : word.end] for word in words] == expected
    text = "Not bad but GOOD"
    words = CustomTokenizer({"_target_": "zhcut.capitals"}, ["good"]).words(text)
    assert [text[word.start : word.end] for word in words] == ["Not", "bad", "but", "GOOD"]


@pytest.mark.slow
def test_the_command_of_the_page_trains_on_chinese_reviews_with_jieba(shell, chinese, tmp_path):
    pytest.importorskip("jieba")
    vectors = tmp_path / "chinese.vec"
    (tmp_path / "chinese.vec.gz").write_bytes(gzip.compress(vectors.read_bytes()))
    words = [*train_command("## Chinese reviews", "jieba"), "model=mean", "trainer.max_epochs=1"]
    words += ["logger=csv", "trainer=cpu", "pictures=false", "hydra.run.dir=run"]
    shell("train", *words, cwd=tmp_path)
    assert (tmp_path / "run" / "metrics.json").exists()


def test_characters_are_symbols_and_are_joined_again(composed):
    assert Tokenizer("characters", ["很", "好"]).encode(["很 好 x"]).ids.tolist() == [2, 3, UNK]
    assert symbols_of("Ab 我很", True, "characters") == "a b ▁ 我 很"
    data = composed("task=seq2seq", "data=translation", "data.tokenizer=[words,characters]")["data"]
    cfg = SimpleNamespace(**data)
    assert split_text("I like it.", cfg) == ["i", "like", "it", "."]
    assert joined_symbols(["我", "很", "▁", "好"], cfg, 1) == "我很 好"
