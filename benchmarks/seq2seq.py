"""Training an encoder-decoder with attention, ours against the textbook loop, on the same strings to be reversed.

    python -m benchmarks.seq2seq                      the table, hidden width 256
    python -m benchmarks.seq2seq --hidden 512

Ours is what `python -m imdbattn.train task=seq2seq` runs, Lightning included. The textbook's loop projects all keys at
each step; its batches are 64 strings in random order, padded to the longest, as a plain DataLoader makes them. The rows
"of one length" give both the same work: 64 strings of 20 letters in each batch.
"""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks import textbook_seq2seq as textbook
from benchmarks.table import Row, in_turn, markdown, row
from imdbattn.data.pairs import PairCorpus, prepare
from imdbattn.data.vocabulary import BOS, EOS, PAD
from imdbattn.runs.callbacks import Throughput
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.cli import conf_dir, plain_dict
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_pair_data, new_writer

BATCH = 64  # strings
LETTERS = 20  # of the strings of one length
RIVALS = {  # model of ours -> the textbook's score, and its layers
    "seq2seq_attention_additive": (textbook.AdditiveAttention, 1),
    "seq2seq_bahdanau": (textbook.AdditiveAttention, 2),
    "seq2seq_attention": (textbook.BilinearAttention, 1),
    "seq2seq_attention_dot": (textbook.DotAttention, 1),
}


def settings(model: str, hidden: int, strings: int, alike: bool) -> dict:
    """The settings of a training command; `alike`: strings of one length, 64 to a batch."""
    lengths, tokens = ([LETTERS, LETTERS], BATCH * (2 * LETTERS + 1)) if alike else ([1, LETTERS], 4096)
    overrides = [f"model={model}", f"model.hidden={hidden}", f"model.width={hidden}", f"data.lengths={lengths}"]
    overrides += [f"data.train={strings}", "data.validation=10", "data.test=10", f"data.batch_tokens={tokens}"]
    overrides += ["logger=none", "trainer.enable_progress_bar=false", "trainer.max_epochs=1"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return validate(plain_dict(compose("train", overrides=["task=seq2seq", *overrides]))).model_dump()


@cache
def strings_of(count: int, alike: bool) -> PairCorpus:
    return prepare(settings("seq2seq", 8, count, alike)["data"])


def ours(model: str, hidden: int, count: int, alike: bool) -> float:
    """Seconds of an epoch."""
    cfg, corpus, throughput = settings(model, hidden, count, alike), strings_of(count, alike), Throughput()
    trainer = build_trainer(cfg["trainer"], [throughput], enable_checkpointing=False, limit_val_batches=0)
    trainer.fit(new_writer(cfg, corpus), build_pair_data(cfg, corpus))
    return throughput.seconds


def collate(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (B, S), their lengths, targets (B, T), padded to the longest of the batch."""
    sides = [[torch.tensor(side) for side in part] for part in zip(*pairs, strict=True)]
    source_BS, target_BT = (pad_sequence(side, batch_first=True, padding_value=PAD) for side in sides)
    return source_BS, torch.tensor([len(source) for source, _ in pairs]), target_BT


def theirs(model: str, hidden: int, count: int, alike: bool) -> float:
    """Seconds of an epoch of the textbook's."""
    train = strings_of(count, alike).splits["train"]
    source, target = (
        [side.ids[a:b].tolist() for a, b in zip(side.offsets.tolist(), side.offsets.tolist()[1:], strict=False)]
        for side in (train.source, train.target)
    )
    assert all(ids[-1] == EOS for ids in target)
    attention, layers = RIVALS[model]
    net = textbook.TextbookTranslator(30, hidden, hidden, layers, attention(hidden))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    loader = DataLoader(list(zip(source, target, strict=True)), BATCH, shuffle=True, collate_fn=collate)
    start = time.perf_counter()
    for source_BS, lengths_B, target_BT in loader:
        before_BT = torch.cat([torch.full_like(target_BT[:, :1], BOS), target_BT[:, :-1]], dim=1)
        logits_BTV = net(source_BS, lengths_B, before_BT)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return time.perf_counter() - start


def rows(hidden: int = 256, strings: int = 1280, rounds: int = 3) -> list[Row]:
    quiet()
    logging.getLogger("imdbattn").setLevel(logging.WARNING)
    # In a process of its own, so that it meets torch as it comes.
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:

        def race(name: str, goal: str, model: str, alike: bool) -> Row:
            def other() -> float:
                return strings / apart.submit(theirs, model, hidden, strings, alike).result()

            mine: Callable[[], float] = lambda: strings / ours(model, hidden, strings, alike)  # noqa: E731
            return row(name, "strings/s", goal, in_turn(mine, other, rounds))

        ours("seq2seq_attention", hidden, BATCH, True)  # both sides once, so that no first call is timed
        apart.submit(theirs, "seq2seq_attention", hidden, BATCH, True).result()
        return [
            race(f"reversing {LETTERS} letters, additive score", ">= 2", "seq2seq_attention_additive", True),
            race(f"reversing {LETTERS} letters, additive score, two layers", "", "seq2seq_bahdanau", True),
            race(f"reversing {LETTERS} letters, bilinear score", ">= 2", "seq2seq_attention", True),
            race(f"reversing {LETTERS} letters, dot score (no keys to project)", "", "seq2seq_attention_dot", True),
            race(f"reversing 1 to {LETTERS} letters, additive score", ">= 2", "seq2seq_attention_additive", False),
            race(f"reversing 1 to {LETTERS} letters, bilinear score", ">= 2", "seq2seq_attention", False),
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="width of the states and embeddings")
    parser.add_argument("--strings", type=int, default=1280, help="strings of an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="times that both sides run in turn")
    options = parser.parse_args(arguments)
    print(markdown(rows(options.hidden, options.strings, options.rounds)), end="")


if __name__ == "__main__":
    main()
