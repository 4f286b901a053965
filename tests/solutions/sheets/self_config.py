"""A model and its layers whose settings are one object; a layer is attention alone."""

from dataclasses import dataclass

from torch import nn


@dataclass
class Config:
    vocab_size: int = 500
    width: int = 20
    classes: int = 2
    depth: int = 3


class Layer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(cfg.width, cfg.width) for _ in range(3))

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ self.v(x)


class ReviewNet(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.words = nn.Embedding(cfg.vocab_size, cfg.width)
        self.layers = nn.ModuleList([Layer(cfg) for _ in range(cfg.depth)])
        self.out = nn.Linear(cfg.width, cfg.classes)

    def forward(self, tokens, mask):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.out(mean)
