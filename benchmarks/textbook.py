"""The usual solutions of the exercises, correct but not optimized: the baselines of the benchmarks.

Reviews: a DataLoader over a list of reviews in random order, padded to the longest of the batch;
words become vectors in `collate`; attention is matrix products and a softmax; three layers. Reviews
are lists of ids, so this side needs no tokenizer. Pairs: the encoder-decoder with attention of
courses and blogs, which projects all encoder outputs again at each step of the decoder; its weights
have the same shapes as ours. Both: float32, a training loop by hand.

Shape suffixes: B reviews or pairs, T positions of a review or target, S of a source, D width, H
hidden width, L layers, E width of the target embedding and the context, C classes, V words.
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

# ids of symbols
BOS = 1
PAD = 0


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, one head, with the scores as a tensor (B, T, T)."""

    def __init__(self, width: int):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        scores_BTT = (
            self.query(x_BTD) @ self.key(x_BTD).transpose(1, 2) / math.sqrt(x_BTD.shape[-1])
        )
        scores_BTT = scores_BTT.masked_fill(~mask_BT[:, None], -1e9)
        return scores_BTT.softmax(-1) @ self.value(x_BTD)


class ResidualLayer(nn.Module):
    """x <- ReLU(Linear(x + attention(LayerNorm(x))))."""

    def __init__(self, width: int):
        super().__init__()
        self.attention = SelfAttention(width)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return self.linear(x_BTD + self.attention(self.norm(x_BTD), mask_BT)).relu()


class TextbookNet(nn.Module):
    """residual_pe on embedded words. `words_VD`: None, or vectors to train; then x_BTD are ids (B,
    T).
    """

    pe_TD: Tensor

    def __init__(
        self, width: int, classes: int, scale: float, longest: int, words_VD: Tensor | None = None
    ):
        super().__init__()
        self.words = None
        if words_VD is not None:
            self.words = nn.Embedding.from_pretrained(words_VD.clone(), freeze=False)
        angle_TD = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer(
            "pe_TD", scale * torch.stack([angle_TD.sin(), angle_TD.cos()], -1).flatten(1)
        )
        self.layers = nn.ModuleList(ResidualLayer(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        if self.words is not None:
            x_BTD = self.words(x_BTD)
        x_BTD = x_BTD + self.pe_TD[: x_BTD.shape[1]]
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_BT)
        mask_BT1 = mask_BT[..., None]
        return self.head((x_BTD * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1))


def collate(vectors_VD: Tensor | None, limit: int | None, fixed: bool = False) -> Callable:
    """Returns a collate function: (ids, label) pairs -> x (B, T, D), or (B, T) without vectors;
    mask (B, T); labels (B,).

    limit: maximum words of a review. fixed: pad every batch to the limit, as Keras' pad_sequences
    does.
    """

    def pad(reviews: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
        texts = [torch.tensor(ids[:limit], dtype=torch.long) for ids, _ in reviews]
        longest = limit if fixed and limit else max(1, max(len(text) for text in texts))
        x = torch.zeros(len(texts), longest, *(() if vectors_VD is None else vectors_VD.shape[1:]))
        x = x.long() if vectors_VD is None else x
        mask_BT = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            x[row, : len(text)] = text if vectors_VD is None else vectors_VD[text]
            mask_BT[row, : len(text)] = True
        return x, mask_BT, torch.tensor([label for _, label in reviews])

    return pad


@torch.no_grad()
def score(net: nn.Module, reviews: list, collate_fn: Callable, batch: int) -> float:
    """Counts correct predictions; returns the seconds."""
    # a list is a data set, too
    loader: DataLoader = DataLoader(reviews, batch, collate_fn=collate_fn)  # type: ignore[arg-type]
    net.eval()
    right = 0
    start = time.perf_counter()
    for x, mask_BT, labels_B in loader:
        right += (net(x, mask_BT).argmax(1) == labels_B).sum().item()
    return time.perf_counter() - start


class AdditiveAttention(nn.Module):
    """v^T tanh(W_k k + W_q q), keys projected at each call."""

    def __init__(self, hidden: int):
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        features_BSH = torch.tanh(self.query(query_BH).unsqueeze(1) + self.key(outputs_BSH))
        return self.v(features_BSH).squeeze(-1)


class BilinearAttention(nn.Module):
    """h^T W s, keys projected at each call."""

    def __init__(self, hidden: int):
        super().__init__()
        self.key = nn.Linear(hidden, hidden, bias=False)

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        return torch.bmm(self.key(outputs_BSH), query_BH.unsqueeze(2)).squeeze(2)


class DotAttention(nn.Module):
    """h . s, divided by sqrt(d) where `scaled`."""

    def __init__(self, hidden: int, scaled: bool = False):
        super().__init__()
        self.scale = 1 / math.sqrt(hidden) if scaled else 1.0

    def forward(self, query_BH: Tensor, outputs_BSH: Tensor) -> Tensor:
        return torch.bmm(outputs_BSH, query_BH.unsqueeze(2)).squeeze(2) * self.scale


class TextbookTranslator(nn.Module):
    """GRU encoder, GRU decoder with attention; teacher forcing by a loop over the target."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, attention: nn.Module):
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, width)
        self.target_embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, hidden, layers, batch_first=True)
        self.attention = attention
        self.decoder = nn.GRU(width + hidden, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, source_BS: Tensor, lengths_B: Tensor, before_BT: Tensor) -> Tensor:
        """Returns logits (B, T, V) for (B, S), (B,), (B, T)."""
        source_BSD = self.source_embedding(source_BS)
        outputs, state_LBH = self.encoder(
            pack_padded_sequence(source_BSD, lengths_B, True, enforce_sorted=False)
        )
        outputs_BSH, _ = pad_packed_sequence(
            outputs, batch_first=True, total_length=source_BS.shape[1]
        )
        logits = []
        for step in range(before_BT.shape[1]):
            embedded_B1E = self.target_embedding(before_BT[:, step : step + 1])
            scores_BS = self.attention(state_LBH[-1], outputs_BSH)
            mask_BS = torch.arange(source_BS.shape[1])[None, :] < lengths_B[:, None]
            weights_BS = torch.softmax(scores_BS.masked_fill(~mask_BS, -1e9), dim=-1)
            context_B1H = torch.bmm(weights_BS.unsqueeze(1), outputs_BSH)
            output_B1H, state_LBH = self.decoder(
                torch.cat([embedded_B1E, context_B1H], dim=2), state_LBH
            )
            logits.append(self.output(output_B1H))
        return torch.cat(logits, dim=1)


def collate_pairs(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sources (B, S), their lengths (B,), and targets (B, T), padded to the longest of the
    batch.
    """
    sources = [torch.tensor(source) for source, _ in pairs]
    targets = [torch.tensor(target) for _, target in pairs]
    source_BS = pad_sequence(sources, batch_first=True, padding_value=PAD)
    target_BT = pad_sequence(targets, batch_first=True, padding_value=PAD)
    return source_BS, torch.tensor([len(source) for source in sources]), target_BT


def review_loss(net: nn.Module, x: Tensor, mask_BT: Tensor, labels_B: Tensor) -> Tensor:
    return F.cross_entropy(net(x, mask_BT), labels_B)


def pair_loss(net: nn.Module, source_BS: Tensor, lengths_B: Tensor, target_BT: Tensor) -> Tensor:
    before_BT = torch.cat([torch.full_like(target_BT[:, :1], BOS), target_BT[:, :-1]], dim=1)
    logits_BTV = net(source_BS, lengths_B, before_BT)
    return F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=PAD)


def train(
    net: nn.Module,
    items: list,
    collate_fn: Callable,
    batch: int,
    loss_of=review_loss,
    clip=math.inf,
    device="cpu",
    dtype=None,
) -> float:
    """Trains one epoch; returns its seconds. clip: largest norm of the gradient. dtype: for
    autocast; None is float32.
    """
    # a list is a data set, too
    loader: DataLoader = DataLoader(
        items,  # type: ignore[arg-type]
        batch_size=batch,
        shuffle=True,
        collate_fn=collate_fn,
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    net.train()
    start = time.perf_counter()
    for tensors in loader:
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            loss = loss_of(net, *(tensor.to(device) for tensor in tensors))
        optimizer.zero_grad()
        loss.backward()
        if clip < math.inf:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    loss.item()  # waits for a GPU
    return time.perf_counter() - start
