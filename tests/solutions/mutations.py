"""Mistakes of students as changes of files in right/, written without knowledge of the checker's
rules.

Each is (file, what is wrong, text of the file, text in its place); each file must be refused, under
whatever name.
Do not change a line to suit the checker: if it passes, the checker is to be changed.
"""

MUTATIONS = [
    # SelfAttention
    ("linears", "the keys are also the values", "dim=-1) @ self.value(x)", "dim=-1) @ self.key(x)"),
    (
        "linears",
        "weights divided by T",
        "dim=-1) @ self.value(x)",
        "dim=-1) @ self.value(x) / x.shape[1]",
    ),
    ("fused", "scale of the fused width", "k.size(-1) ** -0.5", "self.qkv.out_features ** -0.5"),
    (
        "fused",
        "reshape mixes q, k, v and reviews",
        "self.qkv(x).chunk(3, dim=-1)",
        "self.qkv(x).reshape(3, *x.shape)",
    ),
    ("kernels", "causal instead of a padding mask", "attn_mask=keys[:, None, :]", "is_causal=True"),
    ("kernels", "scale 1", "attn_mask=keys[:, None, :]", "attn_mask=keys[:, None, :], scale=1.0"),
    (
        "kernels",
        "dropout in evaluation",
        "attn_mask=keys[:, None, :]",
        "attn_mask=keys[:, None, :], dropout_p=0.1",
    ),
    (
        "multihead",
        "torch's mask is True on padding",
        "key_padding_mask=padding",
        "key_padding_mask=mask",
    ),
    ("loops", "scale by the number of words", "np.sqrt(self.d)", "np.sqrt(len(review))"),
    # masked_mean
    (
        "linears",
        "words of the whole batch",
        "words.sum(1).clamp(min=1)",
        "words.sum().clamp(min=1)",
    ),
    (
        "loops",
        "one word too few in the divisor",
        "max(1, int(words.sum()))",
        "max(1, int(words.sum()) - 1)",
    ),
    ("kernels", "without the last word", "one[words].mean(0)", "one[words][:-1].mean(0)"),
    # positional_encoding
    ("linears", "sign of the exponent", "[:, None] / 10000 **", "[:, None] * 10000 **"),
    ("loops", "k halved twice", "-2 * k / width", "-2 * (k // 2) / width"),
    ("einsum", "an exponent of its own for each cosine", "(h - h % 2) / width", "h / width"),
    ("multihead", "1000 in the classifier's positions", "-math.log(10000)", "-math.log(1000)"),
    # PlainLayer, ResidualLayer
    (
        "fused",
        "skip connection around a plain layer",
        "F.relu(self.linear(self.attend(x, mask)))",
        "x + F.relu(self.linear(self.attend(x, mask)))",
    ),
    (
        "fused",
        "Linear before the attention",
        "F.relu(self.linear(self.attend(x, mask)))",
        "F.relu(self.attend(self.linear(x), mask))",
    ),
    ("linears", "g is not applied", "return self.g(x + self.f(", "return (x + self.f("),
    (
        "multihead",
        "x is overwritten by its norm before the skip connection",
        "skip = x\n        x = self.attention(self.norm(x), mask)",
        "x = self.norm(x)\n        skip = x\n        x = self.attention(x, mask)",
    ),
    (
        "einsum",
        "normalized over the words",
        "x.mean(-1, keepdim=True), x.var(-1,",
        "x.mean(1, keepdim=True), x.var(1,",
    ),
    (
        "multihead",
        "dropout in evaluation",
        "self.g(skip + x)",
        "self.g(skip + nn.functional.dropout(x, 0.1))",
    ),
    # Classifier
    (
        "linears",
        "one padding counts as a word",
        "device=lengths.device) < lengths",
        "device=lengths.device) <= lengths",
    ),
    (
        "multihead",
        "the last word is padding if CLS is used",
        "x], 1), lengths + 1",
        "x], 1), lengths",
    ),
    ("multihead", "CLS is read at the last position", "x[:, 0, :]", "x[:, -1, :]"),
    ("linears", "the layers' results are not used", "x = layer(x, mask)", "layer(x, mask)"),
    (
        "fused",
        "mean of probabilities of words",
        "self.out(masked_mean(x, mask))",
        "masked_mean(self.out(x).softmax(-1), mask)",
    ),
    (
        "linears",
        "CLS is masked as a key",
        "torch.ones_like(mask[:, :1])",
        "torch.zeros_like(mask[:, :1])",
    ),
    # test_accuracy
    ("linears", "only the last batch counts", "correct += (model", "correct = (model"),
]
