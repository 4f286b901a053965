"""The textbook's decoder with an LSTM, its state in a dict."""

import torch
from torch import nn


def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return X.softmax(-1)
    if valid_lens.dim() == 1:
        valid_lens = valid_lens.unsqueeze(1)
    idx = torch.arange(X.size(-1), device=X.device)
    return torch.where(idx < valid_lens.unsqueeze(-1), X, torch.full_like(X, -1e6)).softmax(-1)


class AdditiveAttention(nn.Module):
    def __init__(self, key_size, query_size, num_hiddens, dropout=0.0):
        super().__init__()
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.attention_weights = None

    def forward(self, queries, keys, values, valid_lens=None):
        e = self.w_v(torch.tanh(self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1)))
        self.attention_weights = masked_softmax(e.squeeze(-1), valid_lens)
        return self.dropout(self.attention_weights).matmul(values)


class Seq2SeqAttentionDecoder(nn.Module):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0.0):
        super().__init__()
        self.attn = AdditiveAttention(num_hiddens, num_hiddens, num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.lstm = nn.LSTM(
            embed_size + num_hiddens, num_hiddens, num_layers, dropout=dropout, batch_first=True
        )
        self.out = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens=None):
        outputs, (h, c) = enc_outputs
        return {"mem": outputs.transpose(0, 1), "h": h, "c": c, "lens": enc_valid_lens}

    def forward(self, X, state):
        mem, h, c, lens = state["mem"], state["h"], state["c"], state["lens"]
        emb = self.embedding(X)
        ys = []
        for t in range(emb.size(1)):
            q = h[-1].unsqueeze(1)
            ctx = self.attn(q, mem, mem, lens)
            inp = torch.cat([ctx, emb[:, t : t + 1, :]], dim=2)
            y, (h, c) = self.lstm(inp, (h, c))
            ys.append(y)
        logits = self.out(torch.cat(ys, dim=1))
        return logits, {"mem": mem, "h": h, "c": c, "lens": lens}
