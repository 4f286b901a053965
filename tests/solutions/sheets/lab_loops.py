"""Loops over reviews and words for the context, and a GRU cell."""

import torch
from torch import nn

VOCAB_SIZE = 30
H = 9


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB_SIZE, 11)
        self.encoder = nn.GRU(11, H, batch_first=True)
        self.decoder = nn.GRUCell(11 + H, H)
        self.attention_W = nn.Parameter(torch.randn(H, H) / 3)
        self.out = nn.Linear(H, VOCAB_SIZE)

    def get_context_vector(self, encoder_out, hidden_state):
        rows = []
        for b in range(encoder_out.shape[0]):
            scores = []
            for s in range(encoder_out.shape[1]):
                scores.append(encoder_out[b, s] @ self.attention_W @ hidden_state[0, b])
            w = torch.softmax(torch.stack(scores), 0)
            rows.append(sum(w[s] * encoder_out[b, s] for s in range(len(w))))
        return torch.stack(rows).unsqueeze(1)

    def advance(self, encoder_out, emb_x, hidden_state):
        context = self.get_context_vector(encoder_out, hidden_state)
        h = self.decoder(torch.cat([emb_x, context.squeeze(1)], 1), hidden_state.squeeze(0))
        return self.out(h), h.unsqueeze(0)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        logits, hidden_state = self.advance(encoder_out, self.emb(input_X.squeeze(1)), hidden_state)
        return logits.argmax(1).unsqueeze(1), hidden_state

    def decoding(self, encoder_out, decoder_X, hidden_state):
        result = []
        for t in range(decoder_X.shape[1]):
            logits, hidden_state = self.advance(
                encoder_out, self.emb(decoder_X[:, t]), hidden_state
            )
            result.append(logits)
        return torch.stack(result, 1)

    def forward(self, encoder_X, decoder_X):
        encoder_out, hidden_state = self.encoder(self.emb(encoder_X))
        return self.decoding(encoder_out, decoder_X, hidden_state)
