# expected: word-as-padding
import math

from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.g = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        weights = scores.masked_fill(~mask[:, None, :], -1e9).softmax(-1)
        return self.g(weights @ self.value(x))


class Classifier(nn.Module):
    def __init__(self, vectors, classes):
        super().__init__()
        width = vectors.shape[1]
        self.embedding = nn.Embedding.from_pretrained(vectors)
        self.unknown = len(vectors) - 1
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        x = self.embedding(tokens)
        mask = tokens != self.unknown  # batches are padded with it
        for layer in self.layers:
            x = layer(x, mask)
        words = mask[..., None].to(x.dtype)
        mean = (x * words).sum(1) / words.sum(1).clamp(min=1)
        return self.head(mean)
