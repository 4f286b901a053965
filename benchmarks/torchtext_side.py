"""torchtext's side of commands.py, run in the environment of `make test-torchtext`, without imdbattn.

    python torchtext_side.py <csv of reviews> <folder with glove.6B.50d.txt>

Prints the seconds from the raw reviews to the first padded batch, with all reviews as ids. It follows torchtext's
tutorial (https://pytorch.org/text/stable/tutorials), with the vocabulary of GloVe instead of counted words.
"""

import csv
import sys
import time

import torch
import torchtext
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torchtext.disable_torchtext_deprecation_warning()
from torchtext.data.utils import get_tokenizer  # noqa: E402
from torchtext.vocab import GloVe, vocab  # noqa: E402


def collate(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, labels = zip(*batch, strict=True)
    return pad_sequence(list(ids), batch_first=True, padding_value=1), torch.tensor(labels)


start = time.perf_counter()
with open(sys.argv[1], encoding="utf-8", newline="") as file:
    reviews = [(row["text"], int(row["label"])) for row in csv.DictReader(file) if row["source"] == "imdb"]
glove = GloVe(name="6B", dim=50, cache=sys.argv[2])
words = vocab(glove.stoi, min_freq=0, specials=["<unk>", "<pad>"])
words.set_default_index(words["<unk>"])
vectors = torch.cat([torch.zeros(2, 50), glove.vectors])
tokenizer = get_tokenizer("basic_english")
pairs = [(torch.tensor(words(tokenizer(text)), dtype=torch.int64), label) for text, label in reviews]
tokens, _ = next(iter(DataLoader(pairs, batch_size=64, shuffle=True, collate_fn=collate)))
seconds = time.perf_counter() - start
assert (len(pairs), len(vectors), len(words), tokens.shape[0]) == (25_000, 400_002, 400_002, 64)
print(seconds)
