"""The lab with an encoder of two directions, whose states are joined."""

import torch
from torch import nn

VOCAB, EMB, HIDDEN = 26, 12, 16


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, EMB)
        self.encoder = nn.LSTM(EMB, HIDDEN // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(EMB + HIDDEN, HIDDEN, batch_first=True)
        self.attention_W = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.classifier = nn.Linear(HIDDEN, VOCAB)

    def get_context_vector(self, encoder_out, hidden_state):
        scores = encoder_out @ self.attention_W(hidden_state[-1]).unsqueeze(2)
        return (scores.softmax(1) * encoder_out).sum(1, keepdim=True)

    def step(self, encoder_out, input_X, state):
        context = self.get_context_vector(encoder_out, state[0])
        return self.decoder(torch.cat([self.embedding(input_X), context], -1), state)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        y, state = self.step(encoder_out, input_X, hidden_state)
        return self.classifier(y).argmax(-1), state

    def forward(self, encoder_X, decoder_X):
        encoder_out, state = self.encoder(self.embedding(encoder_X))
        state = tuple(torch.cat([*one], -1)[None] for one in state)
        ys = []
        for input_X in decoder_X.split(1, 1):
            y, state = self.step(encoder_out, input_X, state)
            ys.append(y)
        return self.classifier(torch.cat(ys, 1))
