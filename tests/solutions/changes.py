"""Mistakes as changes of right/linears.py and right/scores.py: (finding, part, text of the file,
text in its place).
"""

SCORES = "scores.masked_fill(~mask[:, None, :], -1e9)"
SOFTMAX = "torch.softmax(scores, dim=-1) @ self.value(x)"
MEAN = "(x * words).sum(1) / words.sum(1).clamp(min=1)"
ROWS = "torch.arange(length)[:, None]"
POWER = "(torch.arange(0, width, 2) / width)"
RESIDUAL = "self.g(x + self.f(self.norm(x), mask))"
LAYERS = "nn.ModuleList(ResidualLayer(width) for _ in range(3))"
ADDED = "x + positional_encoding(x.shape[1], x.shape[2]).to(x.device)"
MASK = "padding_mask(lengths, tokens.shape[1])"
CLS = "nn.Parameter(torch.randn(width))"
CAT = "torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)"
CAT_MASK = "torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)"
POOLED = "x[:, 0]\n"
COUNT = "correct / total"
EVAL = "    model.eval()\n"
LOOP = "in test_loader:"
LINEAR_VALUE = "self.value = nn.Linear(width, width)"
THREE = "\n        ".join(
    f"self.{name} = nn.Linear(width, width)" for name in ("query", "key", "value")
)
ATTENTION = [
    ("softmax-over-queries", SOFTMAX, "torch.softmax(scores, dim=1) @ self.value(x)"),
    ("softmax-over-batch", SOFTMAX, "torch.softmax(scores, dim=0) @ self.value(x)"),
    ("sigmoid-not-softmax", SOFTMAX, "torch.sigmoid(scores) @ self.value(x)"),
    ("no-softmax", SOFTMAX, "scores @ self.value(x)"),
    ("skip-in-attention", SOFTMAX, f"x + {SOFTMAX}"),
    (
        "softmax-of-the-result",
        SOFTMAX,
        "torch.softmax(torch.softmax(scores, dim=-1) @ self.value(x), dim=-1)",
    ),
    ("no-attention", SOFTMAX, "self.value(x)"),
    ("no-scale", " / math.sqrt(x.shape[-1])", ""),
    ("wrong-scale", "math.sqrt(x.shape[-1])", "x.shape[-1]"),
    ("no-key-mask", SCORES, "scores"),
    ("mask-inverted", SCORES, "scores.masked_fill(mask[:, None, :], -1e9)"),
    ("queries-masked", SCORES, "scores.masked_fill(~mask[:, :, None], -1e9)"),
    ("mask-too-weak", SCORES, "scores.masked_fill(~mask[:, None, :], 1e-9)"),
    (
        "mask-after-softmax",
        SOFTMAX,
        (
            "(torch.softmax(self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5, dim=-1) * mask[:,"
            " None]) @ self.value(x)"
        ),
    ),
    ("nan-without-words", SCORES, 'scores.masked_fill(~mask[:, None, :], -float("inf"))'),
    (
        "nan-at-padding",
        SCORES,
        'scores.masked_fill(~(mask[:, None] & mask[..., None]), -float("inf"))',
    ),
    (
        "depends-on-order",
        SCORES,
        "scores.masked_fill(~mask[:, None, :].expand_as(scores).tril(), -1e9)",
    ),
    ("lengths-of-other-reviews", SCORES, "scores.masked_fill(~mask.all(0), -1e9)"),
    ("result-not-used", "scores = self.query(x) @", "scores = self.query(x).detach() @"),
    ("gradient-cut", "scores = self.query(x) @", "scores = self.query(x.detach()) @"),
    (
        "not-registered",
        LINEAR_VALUE,
        "self.w = torch.randn(width, width); self.value = lambda x: x @ self.w",
    ),
    (
        "not-registered",
        LINEAR_VALUE,
        "self.register_buffer('w', torch.randn(width, width)); self.value = lambda x: x @ self.w",
    ),
    (
        "layers-in-a-list",
        LINEAR_VALUE,
        "self.value = (both := [nn.Linear(width, width)])[0].forward; self._all = both",
    ),
    (
        "random-in-evaluation",
        SOFTMAX,
        "nn.functional.dropout(torch.softmax(scores, dim=-1), 0.1) @ self.value(x)",
    ),
    (
        "changes-its-input",
        "scores = self.query(x) @",
        "x *= mask[..., None]\n        scores = self.query(x) @",
    ),
    ("wrong-shape", SOFTMAX, f"({SOFTMAX}).squeeze()"),
    ("not-a-tensor", SOFTMAX, f"{SOFTMAX}, scores"),
    (
        "wrong-signature",
        "forward(self, x, mask):\n        scores",
        "forward(self, x):\n        scores",
    ),
    ("raises", SOFTMAX, "torch.softmax(score, dim=-1) @ self.value(x)"),
    ("no-projection", THREE, "self.query = self.key = self.value = nn.Identity()"),
    (
        "no-projection",
        THREE,
        (
            "self.query, self.key = nn.Identity(), nn.Linear(width, width); "
            "self.value = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))"
        ),
    ),
    ("not-a-module", "class SelfAttention(nn.Module)", "class SelfAttention(dict)"),
]
AVERAGE = [
    ("padding-in-mean", MEAN, "x.mean(1)"),
    ("divides-by-padded-length", MEAN, "(x * words).mean(1)"),
    ("not-divided", MEAN, "(x * words).sum(1)"),
    (
        "zero-vector-as-padding",
        MEAN,
        "(x * words).sum(1) / ((x * words) != 0).any(-1).sum(1)[:, None].clamp(min=1)",
    ),
    ("divides-by-longest", MEAN, "(x * words).sum(1) / words.sum(1).max()"),
    ("depends-on-padding", MEAN, "(x * words).amax(1) + 1"),
]
POSITIONS = [
    (
        "sin-and-cos-swapped",
        "angle.sin()\n    table[:, 1::2] = angle.cos()",
        "angle.cos()\n    table[:, 1::2] = angle.sin()",
    ),
    ("halves-not-interleaved", "return table", "return torch.cat([angle.sin(), angle.cos()], 1)"),
    ("positions-from-1", ROWS, "torch.arange(1, length + 1)[:, None]"),
    ("wrong-exponent", POWER, "(torch.arange(0, width, 2) * 2 / width)"),
    ("wrong-base", "10000", "1000"),
    ("wrong-wavelengths", f"10000 ** {POWER}", f"5000 ** {POWER}"),
    ("not-sin-and-cos", "table[:, 1::2] = angle.cos()", "table[:, 1::2] = angle.sin()"),
    ("wrong-dtype", "return table", "return table.long()"),
]
PLAIN = [
    ("skip-in-plain-layer", "self.g(self.f(x, mask))", "self.g(x + self.f(x, mask))"),
    ("no-relu", "nn.Linear(width, width), nn.ReLU())", "nn.Linear(width, width))"),
]
SKIP = [
    ("norm-on-skip", RESIDUAL, "self.g((y := self.norm(x)) + self.f(y, mask))"),
    ("norm-after-sum", RESIDUAL, "self.g(self.norm(x + self.f(x, mask)))"),
    ("no-norm", RESIDUAL, "self.g(x + self.f(x, mask) + 0 * self.norm(x))"),
    ("no-skip", RESIDUAL, "self.g(self.f(self.norm(x), mask))"),
    ("skip-around-g", RESIDUAL, "x + self.g(self.f(self.norm(x), mask))"),
    (
        "batch-norm",
        "nn.LayerNorm(width)",
        "(lambda x: self.n(x.mT).mT); self.n = nn.BatchNorm1d(width)",
    ),
    ("no-linear-in-g", "nn.Sequential(nn.Linear(width, width), nn.ReLU())", "nn.ReLU()"),
]
CLASSIFIER = [
    ("softmax-twice", "return self.head(pooled)", "return self.head(pooled).softmax(-1)"),
    ("logits-not-negative", "return self.head(pooled)", "return self.head(pooled).relu()"),
    ("function-after-linear", "return self.head(pooled)", "return self.head(pooled).tanh()"),
    ("vectors-not-used", "from_pretrained(vectors)", "from_pretrained(torch.randn_like(vectors))"),
    ("vectors-trained", "from_pretrained(vectors)", "from_pretrained(vectors, freeze=False)"),
    ("id-0-as-padding", MASK, "tokens != 0"),
    ("word-as-padding", MASK, "tokens != len(self.embedding.weight) - 1"),
    ("lengths-ignored", MASK, "torch.ones_like(tokens, dtype=torch.bool)"),
    (
        "positions-of-reviews",
        "positional_encoding(x.shape[1], x.shape[2])",
        "positional_encoding(*x.shape[::2])[:, None]",
    ),
    ("depends-on-order", 'self.positions == "sinusoidal"', "True"),
    ("not-a-mean", "masked_mean(x, mask)", "(x * mask[..., None]).sum(1)"),
    ("no-positions", ADDED, "x"),
    ("positions-lost-with-cls", ADDED, f"x if self.cls is not None else {ADDED}"),
    ("vectors-scaled", "self.embedding(tokens)", "self.embedding(tokens) * 3"),
    (
        "cls-over-first-word",
        f"{CAT}\n            mask = {CAT_MASK}",
        "torch.cat([self.cls.expand(len(x), 1, -1), x[:, 1:]], dim=1)",
    ),
    ("cls-not-read", CAT_MASK, "torch.cat([mask, mask[:, :1] & False], dim=1)"),
    ("cls-not-trained", CLS, "torch.randn(width)"),
    ("cls-read-elsewhere", POOLED, "masked_mean(x, mask)\n"),
    ("layers-in-a-list", LAYERS, "[ResidualLayer(width) for _ in range(3)]"),
    ("one-layer-shared", LAYERS, "nn.ModuleList([ResidualLayer(width)] * 3)"),
]
ACCURACY = [
    ("accuracy-on-training", LOOP, "in train_loader:"),
    ("accuracy-on-both", LOOP, "in [*train_loader, *test_loader]:"),
    ("not-in-evaluation-mode", EVAL, ""),
    (
        "mean-of-batches",
        "total += len(labels)",
        (
            "total += 1; correct += (n := (model(tokens, lengths).argmax(1) =="
            " labels).double()).mean() - n.sum()"
        ),
    ),
    ("wrong-accuracy", COUNT, "100 * correct / total"),
    ("wrong-lengths", "model(tokens, lengths)", "model(tokens, lengths - 1)"),
    ("one-batch-only", LOOP, "in [next(iter(test_loader))]:"),
]
HEADS = [
    (
        "heads-mix-words",
        "x.shape[1], self.heads, -1).transpose(1, 2)",
        "self.heads, x.shape[1], -1)",
    ),
    (
        "no-output-projection",
        "self.W_o(y.transpose(1, 2).reshape(query.shape))",
        "y.transpose(1, 2).reshape(query.shape)",
    ),
    ("wrong-scale", "self.split(self.W_q(query))", "self.split(self.W_q(query)) / self.heads**0.5"),
    ("one-head", "self.heads = heads", "self.heads = 1"),
    ("shared-projections", "self.split(self.W_v(value))", "self.split(self.W_k(value))"),
    (
        "arguments-exchanged",
        "self.W_k(key)),\n            self.split(self.W_v(value))",
        "self.W_k(value)),\n            self.split(self.W_v(key))",
    ),
]
PRODUCT = [
    ("no-scale", " / math.sqrt(q.shape[-1])", ""),
    ("wrong-scale", "math.sqrt(q.shape[-1])", "q.shape[-1]"),
    ("no-softmax", "torch.softmax(scores, dim=-1)", "scores"),
]
SOFTMAX_LENGTHS = [
    ("one-position-too-many", "< valid_lengths", "<= valid_lengths"),
]
ADDITIVE = [
    ("no-tanh", "torch.tanh(hidden)", "hidden"),
    ("wrong-function", "torch.tanh(hidden)", "torch.relu(hidden)"),
    (
        "differs-from-reference",
        "self.W(q).unsqueeze(2) + self.U(k)",
        "self.W(q).tanh().unsqueeze(2) + self.U(k).tanh()",
    ),
    ("product-not-sum", "unsqueeze(2) + self", "unsqueeze(2) * self"),
    ("v-not-used", "self.v(torch.tanh(hidden)).squeeze(-1)", "torch.tanh(hidden).sum(-1)"),
    ("softmax-in-scores", "squeeze(-1)", "squeeze(-1).softmax(-1)"),
    (
        "scores-transposed",
        "self.W(q).unsqueeze(2) + self.U(k).unsqueeze(1)",
        "self.W(q).unsqueeze(1) + self.U(k).unsqueeze(2)",
    ),
    ("function-of-scores", "self.v(torch.tanh(hidden))", "torch.tanh(self.v(hidden))"),
]
BILINEAR = [
    ("scaled", "k.transpose(1, 2)", "k.transpose(1, 2) / math.sqrt(k.shape[-1])"),
    ("scores-transposed", "self.W(q) @ k.transpose(1, 2)", "k @ self.W(q).transpose(1, 2)"),
]
STEP = [
    ("softmax-over-batch", "softmax(dim=1)", "softmax(dim=0)"),
    (
        "no-attention",
        "outputs).squeeze(1)\n        weights",
        "outputs).squeeze(1) * 0\n        weights",
    ),
    ("state-not-used", "state[:, None], outputs", "outputs[:, :1], outputs"),
    (
        "outputs-projected",
        "torch.bmm(weights[:, None], outputs)",
        "self.score.U(torch.bmm(weights[:, None], outputs))",
    ),
]
GROUPS = {
    "SelfAttention": ATTENTION,
    "masked_mean": AVERAGE,
    "positional_encoding": POSITIONS,
    "PlainLayer": PLAIN,
    "ResidualLayer": SKIP,
    "Classifier": CLASSIFIER,
    "test_accuracy": ACCURACY,
    "MultiHeadAttention": HEADS,
    "scaled_dot_product_attention": PRODUCT,
    "masked_softmax": SOFTMAX_LENGTHS,
    "AdditiveScore": ADDITIVE,
    "BilinearScore": BILINEAR,
    "DecoderAttention": STEP,
}
CHANGES = [
    (finding, part, old, new) for part, group in GROUPS.items() for finding, old, new in group
]
