"""Phrases are distinguished, counted as in the paper, and never reveal the label of a review to
itself.

Shape suffixes: B reviews of a batch, T positions, N reviews, M words of all reviews, W words in
front of a word, O phrases that end at a word, P known phrases and row 0, C classes or columns,
F = O x C ratios of a word.
"""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from imdbattn.data.corpus import load_reviews
from imdbattn.data.phrases import with_words_before
from imdbattn.data.ragged import Batch, Ragged, ragged_from_lists
from imdbattn.errors import UserError
from imdbattn.nn.beyond.context import Phrases, counting_folds
from imdbattn.runs.apply import open_settings
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.settings.schema import PhraseSettings
from imdbattn.tasks.reviews.module import ReviewClassifier
from imdbattn.tasks.reviews.phrases import phrases_of
from imdbattn.tasks.weights import predictor_of
from tests.nets import batch_of, learner, net, phrases, reviews

FOLDS, ROWS = 4, 12  # ROWS: ids there are
Phrase = tuple[int, ...]  # ids in the order in which they are read

# 1 is <unk>; no text holds 0, <pad>, or 2, <cls>
WORD = st.integers(1, ROWS - 1).filter(lambda word: word != 2)
TEXT = st.lists(WORD, max_size=12)
TEXTS = st.lists(TEXT, min_size=1, max_size=20)


def labeled(texts: list[list[int]], classes: int) -> Ragged:
    """Each class in turn, so that folds stay the same when all labels of one are rotated."""
    return ragged_from_lists(texts, torch.arange(len(texts)).numpy() % classes)


def counted(
    data: Ragged, classes: int, longest=3, least=2, folds=FOLDS, targets_NC: Tensor | None = None
) -> tuple[Phrases, Tensor]:
    """The phrases, and the ratios that each word of these texts is trained with, (M, F)."""
    targets_NC = F.one_hot(data.labels, classes) if targets_NC is None else targets_NC
    chosen = PhraseSettings(longest=longest, min_reviews=least, folds=folds)
    return phrases_of(chosen, data, counting_folds(data.labels, folds), targets_NC, ROWS)


def found(phrases: Phrases, *texts: list[int]) -> Tensor:
    """The rows of the phrases that end at each word, (B, T, O)."""
    data = with_words_before(ragged_from_lists(list(texts)), phrases.longest)
    batch = batch_of(data)
    return phrases(batch.tokens_BT, batch.before_BTW)


def phrases_in(text: list[int], longest: int) -> set[Phrase]:
    windows = {
        tuple(text[at : at + size])
        for size in range(1, longest + 1)
        for at in range(len(text) - size + 1)
    }
    return {phrase for phrase in windows if min(phrase) >= 2}


def known_by_hand(texts: list[list[int]], longest: int, least: int) -> list[Phrase]:
    """The known phrases, in the order of their rows from 1 on: short ones first."""
    times = Counter(phrase for text in texts for phrase in phrases_in(text, longest))
    return sorted(
        (phrase for phrase, count in times.items() if count >= least), key=lambda p: (len(p), p)
    )


def ratios_by_hand(
    known: list[Phrase], shown: list[tuple[set[Phrase], list[float]]], classes: int
) -> list[list[float]]:
    """r = log((p / |p|_1) / (q / |q|_1)), p = 1 + sum of f over a class, q over the others (the
    paper's eq. 1).

    shown: the phrases of each text, and how much of it counts for each class.
    """

    def shares(inside: set[int]) -> list[float]:
        weights = [(found, sum(target_C[label] for label in inside)) for found, target_C in shown]
        counts = [
            1 + sum(weight for found, weight in weights if phrase in found) for phrase in known
        ]
        return [count / sum(counts) for count in counts]

    every = set(range(classes))
    columns = [
        [math.log(p / q) for p, q in zip(shares({label}), shares(every - {label}), strict=True)]
        for label in (range(classes) if classes > 2 else [1])
    ]
    return [[0.0] * len(columns), *map(list, zip(*columns, strict=True))]


@pytest.mark.parametrize(("longest", "rows"), [(3, 2**21), (2, 3_037_000_500)])
def test_a_vocabulary_that_is_too_large_for_the_numbers_is_refused(longest, rows):
    chosen = PhraseSettings(longest=longest, min_reviews=1, folds=2)
    with pytest.raises(
        UserError,
        match=rf"model\.phrases\.longest={longest} is too large .* set it to {longest - 1}$",
    ):
        phrases(chosen, 2, ragged_from_lists([[3]]), rows)
    phrases(chosen, 2, ragged_from_lists([[3]]), rows - 1)


@given(TEXTS, TEXTS, st.integers(1, 3), st.integers(1, 4))
def test_the_known_phrases_are_found_where_they_end_and_no_others(train, texts, longest, least):
    known = known_by_hand(train, longest, least)
    row = {phrase: number for number, phrase in enumerate(known, 1)}
    phrases, _ = counted(labeled(train, 2), 2, longest, least)
    assert len(phrases.codes_P) == len(known)
    found_BTO = found(phrases, *texts)
    assert found_BTO.shape[2] == longest
    for text, found_TO in zip(texts, found_BTO.tolist(), strict=True):
        expected = [
            [
                row.get(tuple(text[end - size : end]), 0) if size <= end else 0
                for size in range(1, longest + 1)
            ]
            for end in range(1, len(text) + 1)
        ]
        assert found_TO[: len(text)] == expected
        assert not any(map(any, found_TO[len(text) :])), "padding is no phrase"


@pytest.mark.parametrize("classes", [2, 3])
def test_ratios_are_those_of_the_paper_for_the_whole_set_and_without_each_fold(classes):
    """Also with probabilities, with which a review counts for each class, instead of labels."""
    sizes = st.integers(1, 3)  # of the longest phrases, and of the reviews that have one
    texts = TEXTS.filter(lambda texts: len(texts) >= classes)

    @given(texts, sizes, sizes, st.integers(2, 5), st.none() | st.integers(0, 99))
    def holds(texts, longest, least, folds, seed):
        data = labeled(texts, classes)
        targets_NC = F.one_hot(data.labels, classes)
        if seed is not None:
            draw = torch.Generator().manual_seed(seed)
            targets_NC = torch.rand(targets_NC.shape, generator=draw).softmax(1)
        phrases, ratios_MF = counted(data, classes, longest, least, folds, targets_NC)
        known = known_by_hand(texts, longest, least)
        shown = [
            (phrases_in(text, longest), target_C)
            for text, target_C in zip(texts, targets_NC.tolist(), strict=True)
        ]
        fold_of = counting_folds(data.labels, folds).tolist()

        def same(ratios: Tensor, expected: Tensor) -> None:
            torch.testing.assert_close(ratios, expected, atol=1e-5, rtol=1e-5)

        def by_hand(kept: list) -> Tensor:
            return torch.tensor(ratios_by_hand(known, kept, classes))

        same(phrases.log_counts_PC, by_hand(shown))
        found_NTO = found(phrases, *texts)
        words = ratios_MF.split(list(map(len, texts)))
        for number, (text, ratios_TF) in enumerate(zip(texts, words, strict=True)):
            kept = [
                one for one, fold in zip(shown, fold_of, strict=True) if fold != fold_of[number]
            ]
            found_TO = found_NTO[number, : len(text)]
            same(ratios_TF, by_hand(kept)[found_TO].flatten(1))

    holds()


def moved_round(data: Ragged, inside_N: Tensor, classes: int) -> Ragged:
    """The same reviews; the labels of some are another class each."""
    labels_N = torch.where(inside_N, (data.labels + 1) % classes, data.labels)
    return Ragged(data.ids, data.offsets, labels_N, data.rows)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("fold", range(FOLDS))
def test_the_ratios_that_a_review_is_trained_with_do_not_depend_on_its_label(classes, fold):
    """With other labels in one fold, no bit of its own ratios changes; all others change."""
    drawn = reviews(seed=fold, count=30 * classes * FOLDS, longest=12, words=ROWS - 2)
    data = Ragged(drawn.ids, drawn.offsets, torch.arange(len(drawn)) % classes, drawn.rows)
    fold_N = counting_folds(data.labels, FOLDS)
    other = moved_round(data, fold_N == fold, classes)
    assert counting_folds(other.labels, FOLDS).equal(fold_N), "the test's own premise"
    before, before_MF = counted(data, classes)
    after, after_MF = counted(other, classes)
    assert after.codes_P.equal(before.codes_P)
    fold_M = fold_N.repeat_interleave(data.lengths)
    for number in range(FOLDS):
        same = after_MF[fold_M == number].equal(before_MF[fold_M == number])
        assert same == (number == fold)
    assert not after.log_counts_PC.equal(before.log_counts_PC)


def module_for(settings, rung: str, data: Ragged, classes: int = 2) -> ReviewClassifier:
    """The rung over the phrases of these reviews, with the same weights and nothing drawn."""
    cfg = settings(f"model={rung}", "model.embedding.mixout=0")
    model = net(settings, rung, "model.embedding.mixout=0", classes=classes)
    model.context.phrases, ratios_MF = phrases(cfg.model.phrases, classes, data)
    return learner(cfg, model, classes, ratios_MF)


def trained_on(module: ReviewClassifier, batch: Batch) -> Tensor:
    """The logits of a training step."""
    logits = []
    module.trainer = SimpleNamespace(world_size=1)
    with module.net.register_forward_hook(lambda net, inputs, output: logits.append(output)):
        module.train().training_step(batch, 0)
    return logits[0]


@pytest.fixture(scope="module")
def read() -> Ragged:
    drawn = reviews(seed=1, count=400, longest=30)
    return Ragged(drawn.ids, drawn.offsets, torch.arange(len(drawn)) % 2, drawn.rows)


@pytest.mark.parametrize("rung", ["log_counts", "log_counts_mean"])
def test_training_uses_ratios_without_the_fold_of_a_review_and_evaluation_all(settings, read, rung):
    module = module_for(settings, rung, read)
    rows_B = torch.tensor([399, 3, 250, 0, 120])
    options = {"max_tokens": 20, "start_share": 0.5, "word_dropout": 0.5}
    batch = batch_of(with_words_before(read, 3), rows_B, **options)
    own = [module.ratios_MF[read.offsets[row] : read.offsets[row + 1]] for row in rows_B]
    ratios_BTF = torch.zeros(*batch.tokens_BT.shape, module.ratios_MF.shape[1])
    for number, ratios_TF in enumerate(own):
        length = batch.lengths_B[number]
        at_T = batch.positions_BT[number, :length]
        at_T = at_T + (at_T >= 10) * max(0, len(ratios_TF) - 20)  # after the gap
        ratios_BTF[number, :length] = ratios_TF[at_T]
    with torch.no_grad():
        whole_BC = module.net(batch)
        out_of_fold_BC = module.net(batch._replace(ratios_BTF=ratios_BTF))
        assert trained_on(module, batch).equal(out_of_fold_BC)
        assert module.eval()(batch).equal(whole_BC)
        assert (whole_BC - out_of_fold_BC).abs().amax(1).gt(1e-4).all()
        assert module.outputs_of(batch)[-1].equal(whole_BC)


def test_a_loaded_checkpoint_uses_the_ratios_of_the_whole_set(trained, settings):
    folder, metrics = trained("log_counts")
    cfg = settings(f"run={folder}", "trainer=cpu", config="evaluate")
    assert evaluate_run(cfg)["loss"] == metrics["test_loss"]

    theirs, checkpoint = open_settings(cfg)
    loaded = predictor_of(theirs, checkpoint)
    fresh = ReviewClassifier.new(theirs, corpus := load_reviews(theirs.data))
    assert loaded.net.context.phrases.codes_P.equal(fresh.net.context.phrases.codes_P)
    assert loaded.net.context.phrases.log_counts_PC.equal(fresh.net.context.phrases.log_counts_PC)
    assert len(fresh.ratios_MF) == len(corpus.splits["train"].ids)
    kept = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert {name for name in kept if "phrases" in name} == {
        f"net.context.phrases.{name}" for name in ("codes_P", "log_counts_PC")
    }
    assert "ratios_MF" not in kept
