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


def phrase_codes(tokens: Tensor, before_W: Tensor, id_count: int) -> Tensor:
    """Returns a different code for each phrase, (..., O).

    tokens: ids of words, (...). before_W: ids of the words before them, nearest first, (..., W).

    The code is -1 if the phrase contains <unk> or <pad>, or would start before the review.
    id_count^(W + 1) must be below 2^63.
    """
    codes, factor = [torch.where(tokens < FIRST_WORD, -1, tokens)], 1
    for word in before_W.unbind(-1):
        factor *= id_count
        codes.append(
            torch.where((codes[-1] < 0) | (word < FIRST_WORD), -1, codes[-1] + word * factor)
        )
    return torch.stack(codes, -1)


def rows_of(codes: Tensor, codes_P: Tensor) -> Tensor:
    """Returns the row of each code: 1 + its index in the ascending `codes_P`, 0 if it is absent."""
    if not len(codes_P):
        return torch.zeros_like(codes)
    index = torch.searchsorted(codes_P, codes).clamp_(max=len(codes_P) - 1)
    return (index + 1) * (codes_P[index] == codes)


def counting_folds(labels_N: Tensor, folds: int) -> Tensor:
    """Returns the fold of each review, (N,); its phrases are counted without this fold. Folds are
    consecutive blocks of each class, because adjacent IMDB reviews are about the same film.
    """
    fold_N = torch.zeros_like(labels_N)
    for label in labels_N.unique():
        (reviews,) = (labels_N == label).nonzero(as_tuple=True)
        fold_N[reviews] = torch.arange(len(reviews), device=reviews.device) * folds // len(reviews)
    return fold_N


def log_count_ratios(counts_CP: Tensor) -> Tensor:
    """r = log((p / |p|_1) / (q / |q|_1)), (..., P, C), p and q = 1 + counts in a class and in
    the others (eq. 1 with alpha = 1).

    counts_CP: number of reviews of each class that contain each phrase, (..., C, P). For two
    classes, there is only the second's column.
    """
    p = counts_CP.double() + 1
    q = counts_CP.double().sum(-2, keepdim=True) - counts_CP + 1
    r_CP = (p / p.sum(-1, keepdim=True)).log() - (q / q.sum(-1, keepdim=True)).log()
    if counts_CP.shape[-2] == 2:
        r_CP = r_CP[..., 1:, :]
    return r_CP.transpose(-1, -2).float().contiguous()


class Phrases(nn.Module):
    """The known phrases and their log-count ratios.

    codes_P: codes from `phrase_codes`, ascending, without row 0. log_counts_PC: ratios, with zeros
    in row 0. longest: number of words in the longest phrase.
    """

    codes_P: Tensor
    log_counts_PC: Tensor

    def __init__(self, codes_P: Tensor, log_counts_PC: Tensor, id_count: int, longest: int):
        super().__init__()
        self.id_count, self.longest, self.columns = id_count, longest, log_counts_PC.shape[1]
        self.register_buffer("codes_P", codes_P)
        self.register_buffer("log_counts_PC", log_counts_PC)

    def forward(self, tokens_BT: Tensor, before_BTW: Tensor) -> Tensor:
        """Returns the rows of the phrases that end at each word, (B, T, O); 0 if unknown.

        before_BTW: ids of the words before each word.
        """
        return rows_of(phrase_codes(tokens_BT, before_BTW, self.id_count), self.codes_P)

    def ratios(self, phrases_BTO: Tensor) -> Tensor:
        """Returns the log-count ratios of phrases by their rows, (B, T, F)."""
        return F.embedding(phrases_BTO, self.log_counts_PC).flatten(2)


def count_phrases(
    ids: tuple[Tensor, Tensor, Tensor],
    fold_N: Tensor,
    targets_NC: Tensor,
    id_count: int,
    least: int,
    folds: int,
) -> tuple[Phrases, Tensor]:
    """Returns the phrases of 1 .. W + 1 words that occur in at least `least` training reviews, and
    the ratios of each word of these reviews for training, (M, F). The ratios of a word are counted
    without the fold of its review, because a ratio that counts a review reveals its label.

    Args:
        ids: ids of all words of the training reviews, (M,); ids of the words before each, nearest
            first and 0 before the start of the review, (M, W); and the review of each, (M,).
        fold_N: see `counting_folds`.
        targets_NC: probabilities of each review's class; their sums are expected counts (Su et al.,
            "Large Scale Text Classification using Semi-supervised Multinomial Naive Bayes", 2011).
    """
    ids_M, before_MW, review_M = ids
    codes_MO = phrase_codes(ids_M, before_MW, id_count)
    codes, times = codes_MO[codes_MO >= 0].unique(return_counts=True)
    codes = codes[times >= least]  # most phrases are removed before the expensive part
    row_MO = rows_of(codes_MO, codes)
    pairs = (review_M[:, None] * (len(codes) + 1) + row_MO)[row_MO > 0].unique()  # one per review
    review, phrase = pairs // (len(codes) + 1), pairs % (len(codes) + 1) - 1
    known = phrase.bincount(minlength=len(codes)) >= least
    row_MO = F.pad(known.cumsum(0) * known, (1, 0))[row_MO]  # rows among the known phrases
    codes_P, column = codes[known], known.cumsum(0) - 1
    review, phrase = review[known[phrase]], phrase[known[phrase]]
    cells = fold_N[review] * len(codes_P) + column[phrase]
    counts = [
        cells.bincount(weights_N[review].double(), folds * len(codes_P))
        for weights_N in targets_NC.T
    ]
    counts_KCP = torch.stack(counts).unflatten(1, (folds, len(codes_P))).transpose(0, 1)
    whole_CP = counts_KCP.sum(0)
    whole_PC, *out_of_fold = (
        F.pad(log_count_ratios(counts_CP), (0, 0, 1, 0))
        for counts_CP in (whole_CP, *(whole_CP - counts_KCP))
    )
    cell_MO = fold_N[review_M][:, None] * len(whole_PC) + row_MO
    ratios_MF = F.embedding(cell_MO, torch.cat(out_of_fold)).flatten(1)
    return Phrases(codes_P, whole_PC, id_count, before_MW.shape[-1] + 1), ratios_MF


class Context(nn.Module):
    """Adds a linear map of the phrases' log-count ratios to the words, then applies a mixer: a
    Convolution, or a nn.beyond.recurrent.BidirectionalGRU.

    phrases: None for no phrases. mixer: called with the width; None for no mixer.
    """

    def __init__(self, width: int, phrases: Phrases | None = None, mixer: MakePart | None = None):
        super().__init__()
        self.phrases = phrases
        if phrases is not None:
            self.ratios = nn.Linear(phrases.longest * phrases.columns, width, bias=False)
        self.mixer = mixer(width) if mixer else None

    def forward(self, x_BTD: Tensor, words: WordPositions, batch: Any) -> Tensor:
        """(B, T, D) -> (B, T, D). batch: with phrases, a data.phrases.PhraseBatch, with ratios_BTF
        in training.
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
