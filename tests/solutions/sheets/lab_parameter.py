"""The lab with attention_W as a matrix, and next to the decoder's output in the last Linear."""

import torch
from torch import nn

n_tokens = 30
emb_dim = 12
hidden_size = 16


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, emb_dim)
        self.encoder_rnn = nn.RNN(emb_dim, hidden_size, batch_first=True)
        self.decoder_rnn = nn.RNN(emb_dim, hidden_size, batch_first=True)
        self.attention_W = nn.Parameter(torch.randn(hidden_size, hidden_size) * 0.1)
        self.output = nn.Linear(hidden_size * 2, n_tokens)

    def get_context_vector(self, encoder_out, hidden_state):
        h = hidden_state.squeeze(0)
        scores = torch.einsum("bh,hk,bsk->bs", h, self.attention_W, encoder_out)
        attention = scores.softmax(dim=-1).unsqueeze(1)
        return attention @ encoder_out

    def step(self, encoder_out, x, hidden_state):
        out, hidden_state = self.decoder_rnn(self.embedding(x), hidden_state)
        context = self.get_context_vector(encoder_out, hidden_state)
        return self.output(torch.cat((out, context), -1)), hidden_state

    def decoding(self, decoder_X, encoder_out, hidden_state):
        steps = []
        for x in decoder_X.split(1, dim=1):
            logits, hidden_state = self.step(encoder_out, x, hidden_state)
            steps.append(logits)
        return torch.cat(steps, 1)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        logits, hidden_state = self.step(encoder_out, input_X, hidden_state)
        return torch.argmax(logits, dim=-1), hidden_state

    def forward(self, encoder_X, decoder_X):
        encoder_out, hidden_state = self.encoder_rnn(self.embedding(encoder_X))
        return self.decoding(decoder_X, encoder_out, hidden_state)
