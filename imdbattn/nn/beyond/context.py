"""Additions to the words, before their positions: log-count ratios of the phrases that end at a
word (Wang & Manning, "Baselines and Bigrams", ACL 2012), and a convolution.

Shape suffixes: B reviews, T positions, D width, W words before a word, O = W + 1 phrases that end
at a word (of 1, 2 .. W + 1 words), P known phrases, with row 0 for all others, K folds, C columns
of log-count ratios, F = O x C ratios of a word, M words of the training set, N its reviews.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.nn.ladder import FIRST_WORD, MakePart, WordPositions


def phrase_keys(tokens: Tensor, before_W: Tensor, rows: int) -> Tensor:
    """Ids (...) and those of the words before, nearest first, (..., W) -> a different key for each
    phrase, (..., O).

    -1 where a word is <unk> or <pad>, or the review starts. rows: number of ids; rows^(W + 1) must
    be below 2^63.
    """
    keys, factor = [torch.where(tokens < FIRST_WORD, -1, tokens)], 1
    for word in before_W.unbind(-1):
        factor *= rows
        keys.append(torch.where((keys[-1] < 0) | (word < FIRST_WORD), -1, keys[-1] + word * factor))
    return torch.stack(keys, -1)


def rows_of(keys: Tensor, keys_P: Tensor) -> Tensor:
    """Returns the row of each key: 1 + its place among the ascending `keys_P`, 0 for others."""
    if not len(keys_P):
        return torch.zeros_like(keys)
    index = torch.searchsorted(keys_P, keys).clamp_(max=len(keys_P) - 1)
    return (index + 1) * (keys_P[index] == keys)


def folds_of(labels_N: Tensor, folds: int) -> Tensor:
    """Returns the fold of each review, (N,): consecutive blocks of each class, as adjacent IMDB
    reviews are about one film.
    """
    fold_N = torch.zeros_like(labels_N)
    for label in labels_N.unique():
        (places,) = (labels_N == label).nonzero(as_tuple=True)
        fold_N[places] = torch.arange(len(places), device=places.device) * folds // len(places)
    return fold_N


def log_count_ratios(counts_CP: Tensor, alpha: float = 1.0) -> Tensor:
    """r = log((p / |p|_1) / (q / |q|_1)), (..., P, C), p and q = alpha + counts in a class and the
    others (eq. 1).

    counts_CP: (..., C, P), number of reviews of a class with the phrase. Two classes have one
    column, the second's.
    """
    p = counts_CP.double() + alpha
    q = counts_CP.double().sum(-2, keepdim=True) - counts_CP + alpha
    r_CP = (p / p.sum(-1, keepdim=True)).log() - (q / q.sum(-1, keepdim=True)).log()
    if counts_CP.shape[-2] == 2:
        r_CP = r_CP[..., 1:, :]
    return r_CP.transpose(-1, -2).float().contiguous()


class Phrases(nn.Module):
    """The known phrases and their log-count ratios.

    keys_P: from `phrase_keys`, ascending, without row 0. log_counts_PC: ratios, zeros in row 0.
    rows: number of ids. longest: words of the longest phrase.
    """

    keys_P: Tensor
    log_counts_PC: Tensor

    def __init__(self, keys_P: Tensor, log_counts_PC: Tensor, rows: int, longest: int):
        super().__init__()
        self.rows, self.longest, self.columns = rows, longest, log_counts_PC.shape[1]
        self.register_buffer("keys_P", keys_P)
        self.register_buffer("log_counts_PC", log_counts_PC)

    def forward(self, tokens_BT: Tensor, before_BTW: Tensor) -> Tensor:
        """Ids, and those of the words before each -> rows of the phrases that end there, (B, T, O);
        0 if unknown.
        """
        return rows_of(phrase_keys(tokens_BT, before_BTW, self.rows), self.keys_P)

    def ratios(self, phrases_BTO: Tensor) -> Tensor:
        """Returns their log-count ratios, (B, T, F)."""
        return F.embedding(phrases_BTO, self.log_counts_PC).flatten(2)


def count_phrases(
    ids: tuple[Tensor, Tensor, Tensor],
    fold_N: Tensor,
    targets_NC: Tensor,
    rows: int,
    least: int,
    folds: int,
) -> tuple[Phrases, Tensor]:
    """Returns the phrases of 1 .. W + 1 words that occur in at least `least` training reviews, and
    the ratios of each word of these reviews for training, (M, F). These are counted without the
    reviews of the word's own fold, because a ratio that counts a review reveals its label.

    Args:
        ids: ids of all words of the training reviews, (M,); ids of the words before each, nearest
            first and 0 before the start of the review, (M, W); and the review of each, (M,).
        fold_N: see `folds_of`.
        targets_NC: probabilities of each review's class; their sums are expected counts (Su et al.,
            "Large Scale Text Classification using Semi-supervised Multinomial Naive Bayes", 2011).
    """
    ids_M, before_MW, review_M = ids
    keys_MO = phrase_keys(ids_M, before_MW, rows)
    keys, times = keys_MO[keys_MO >= 0].unique(return_counts=True)
    keys = keys[times >= least]  # most phrases are removed before the expensive part
    row_MO = rows_of(keys_MO, keys)
    pairs = (review_M[:, None] * (len(keys) + 1) + row_MO)[row_MO > 0].unique()  # one per review
    review, phrase = pairs // (len(keys) + 1), pairs % (len(keys) + 1) - 1
    known = phrase.bincount(minlength=len(keys)) >= least
    row_MO = F.pad(known.cumsum(0) * known, (1, 0))[row_MO]  # rows among the known phrases
    keys_P, column = keys[known], known.cumsum(0) - 1
    review, phrase = review[known[phrase]], phrase[known[phrase]]
    cells = fold_N[review] * len(keys_P) + column[phrase]
    counts = [
        cells.bincount(weights_N[review].double(), folds * len(keys_P))
        for weights_N in targets_NC.T
    ]
    counts_KCP = torch.stack(counts).unflatten(1, (folds, len(keys_P))).transpose(0, 1)
    whole_CP = counts_KCP.sum(0)
    whole_PC, *out_of_fold = (
        F.pad(log_count_ratios(one_CP), (0, 0, 1, 0))
        for one_CP in (whole_CP, *(whole_CP - counts_KCP))
    )
    cell_MO = fold_N[review_M][:, None] * len(whole_PC) + row_MO
    ratios_MF = F.embedding(cell_MO, torch.cat(out_of_fold)).flatten(1)
    return Phrases(keys_P, whole_PC, rows, before_MW.shape[-1] + 1), ratios_MF


class Context(nn.Module):
    """Adds a linear map of the phrases' log-count ratios to the words, then applies a mixer: a
    Convolution, or a nn.beyond.recurrent.BidirectionalGRU.

    phrases: None to omit them. mixer: called with the width; None to omit it.
    """

    def __init__(self, width: int, phrases: Phrases | None = None, mixer: MakePart | None = None):
        super().__init__()
        self.phrases = phrases
        if phrases is not None:
            self.ratios = nn.Linear(phrases.longest * phrases.columns, width, bias=False)
        self.mixer = mixer(width) if mixer else None

    def forward(self, x_BTD: Tensor, words: WordPositions, batch: Any) -> Tensor:
        """(B, T, D) -> (B, T, D). batch: for phrases, their ratios_BTF in training, else tokens_BT
        and before_BTW (data/phrases.PhraseBatch).
        """
        if self.phrases is not None:
            ratios_BTF = batch.ratios_BTF
            if ratios_BTF is None:
                phrases_BTO = self.phrases(batch.tokens_BT * words.mask_BT, batch.before_BTW)
                ratios_BTF = self.phrases.ratios(phrases_BTO)
            x_BTD = x_BTD + self.ratios(ratios_BTF)
        return x_BTD if self.mixer is None else self.mixer(x_BTD, words)


class Convolution(nn.Module):
    """x + ReLU(conv(x)), with zeros for padding (Kim 2014, section 2, with a skip connection).

    kernel: number of words, odd. Word dropout makes the nearest remaining words neighbors.
    """

    def __init__(self, width: int, kernel: int = 3):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(width, width, kernel)

    def forward(self, x_BTD: Tensor, words: WordPositions) -> Tensor:
        words_BTD = x_BTD * words.mask_BT[..., None]
        # The words are images of one row with D channels last, the order of x_BTD in memory. A
        # convolution of x_BDT copies its input, its output and their gradients, and takes twice as
        # long.
        x_BD1T = words_BTD.transpose(1, 2).unsqueeze(2)
        weight = self.conv.weight.unsqueeze(2)
        y_BD1T = F.conv2d(x_BD1T, weight, self.conv.bias, padding=(0, self.kernel // 2))
        return x_BTD + F.relu(y_BD1T).squeeze(2).transpose(1, 2)
