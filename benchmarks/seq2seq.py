"""Training an encoder-decoder with attention for an epoch, ours and a textbook loop, on the same strings to reverse.

Ours is what `python -m imdbattn.train task=seq2seq` runs, Lightning included. The textbook's loop projects all keys at
each step; its batches are 64 strings in random order, padded to the longest. In the rows of one length, both sides have
batches of 64 strings of 20 letters.
"""

import logging
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks import common
from benchmarks import textbook_seq2seq as textbook
from benchmarks.common import Row, in_turn, own_process, row, seconds
from imdbattn.data.pairs import PairCorpus, prepare
from imdbattn.data.vocabulary import BOS, PAD
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.schema import Settings
from imdbattn.tasks.seq2seq import TASK

BATCH = 64  # strings
LETTERS = 20
TEXTBOOKS = {  # model of ours -> the textbook's score, and its layers
    "seq2seq_attention_additive": (textbook.AdditiveAttention, 1),
    "seq2seq_bahdanau": (textbook.AdditiveAttention, 2),
    "seq2seq_attention": (textbook.BilinearAttention, 1),
    "seq2seq_attention_dot": (textbook.DotAttention, 1),
}


def settings(model: str, hidden: int, strings: int, one_length: bool) -> Settings:
    lengths, tokens = ([LETTERS, LETTERS], BATCH * (2 * LETTERS + 1)) if one_length else ([1, LETTERS], 4096)
    overrides = [f"model={model}", f"model.hidden={hidden}", f"model.width={hidden}", f"data.lengths={lengths}"]
    overrides += [f"data.train={strings}", "data.validation=10", "data.test=10", f"data.batch_tokens={tokens}"]
    overrides += ["logger=none", "trainer.enable_progress_bar=false", "trainer.max_epochs=1"]
    return common.settings("task=seq2seq", *overrides)


@cache
def strings_of(count: int, one_length: bool) -> PairCorpus:
    return prepare(settings("seq2seq", 8, count, one_length).data)


def ours(model: str, hidden: int, count: int, one_length: bool) -> float:
    """Seconds of an epoch."""
    cfg, corpus, throughput = settings(model, hidden, count, one_length), strings_of(count, one_length), Throughput()
    trainer = build_trainer(cfg.trainer, [throughput], enable_checkpointing=False, limit_val_batches=0)
    trainer.fit(TASK.new(cfg, corpus), TASK.loaders(cfg, corpus))
    return throughput.seconds


def collate(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (B, S), their lengths (B,), and targets (B, T), padded to the longest of the batch."""
    sides = [[torch.tensor(side) for side in part] for part in zip(*pairs, strict=True)]
    source_BS, target_BT = (pad_sequence(side, batch_first=True, padding_value=PAD) for side in sides)
    return source_BS, torch.tensor([len(source) for source, _ in pairs]), target_BT


def theirs(model: str, hidden: int, count: int, one_length: bool) -> float:
    """Seconds of an epoch of the textbook."""
    train = strings_of(count, one_length).splits["train"]
    source, target = (
        [side.ids[a:b].tolist() for a, b in zip(side.offsets.tolist(), side.offsets.tolist()[1:], strict=False)]
        for side in (train.source, train.target)
    )
    attention, layers = TEXTBOOKS[model]
    net = textbook.TextbookTranslator(30, hidden, hidden, layers, attention(hidden))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    loader = DataLoader(list(zip(source, target, strict=True)), BATCH, shuffle=True, collate_fn=collate)

    def epoch() -> None:
        for source_BS, lengths_B, target_BT in loader:
            before_BT = torch.cat([torch.full_like(target_BT[:, :1], BOS), target_BT[:, :-1]], dim=1)
            logits_BTV = net(source_BS, lengths_B, before_BT)
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return seconds(epoch)


def rows(hidden: int = 256, strings: int = 1280, rounds: int = 3) -> list[Row]:
    quiet()
    logging.getLogger("imdbattn").setLevel(logging.WARNING)
    with own_process() as apart:

        def race(name: str, goal: str, model: str, one_length: bool) -> Row:
            words = model, hidden, strings, one_length
            pairs = in_turn(lambda: strings / ours(*words), lambda: strings / apart(theirs, *words), rounds)
            return row(name, "strings/s", goal, pairs)

        first = "seq2seq_attention", hidden, BATCH, True
        ours(*first)  # both sides once: the first call is not timed
        apart(theirs, *first)
        return [
            race(f"reversing {LETTERS} letters, additive score", ">= 2", "seq2seq_attention_additive", True),
            race(f"reversing {LETTERS} letters, additive score, two layers", "", "seq2seq_bahdanau", True),
            race(f"reversing {LETTERS} letters, bilinear score", ">= 2", "seq2seq_attention", True),
            race(f"reversing {LETTERS} letters, dot score (no keys to project)", "", "seq2seq_attention_dot", True),
            race(f"reversing 1 to {LETTERS} letters, additive score", ">= 2", "seq2seq_attention_additive", False),
            race(f"reversing 1 to {LETTERS} letters, bilinear score", ">= 2", "seq2seq_attention", False),
        ]
