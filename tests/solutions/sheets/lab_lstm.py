"""An LSTM: the state is (h, c), and the context is asked for with h."""

import torch
from torch import nn

N_VOCAB, N_EMB, N_HID = 25, 12, 14


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc_emb = nn.Embedding(N_VOCAB, N_EMB)
        self.dec_emb = nn.Embedding(N_VOCAB, N_EMB)
        self.enc = nn.LSTM(N_EMB, N_HID, batch_first=True)
        self.dec = nn.LSTM(N_EMB, N_HID, batch_first=True)
        self.attention_W = nn.Linear(N_HID, N_HID, bias=False)
        self.out = nn.Linear(2 * N_HID, N_VOCAB)

    def get_context_vector(self, encoder_out, hidden_state):
        h = hidden_state[0] if isinstance(hidden_state, tuple) else hidden_state
        q = self.attention_W(h.transpose(0, 1))
        a = torch.softmax(q @ encoder_out.transpose(1, 2), dim=-1)
        return a @ encoder_out

    def step(self, encoder_out, x, state):
        o, state = self.dec(self.dec_emb(x), state)
        ctx = self.get_context_vector(encoder_out, state[0])
        return self.out(torch.cat([o, ctx], -1)), state

    def get_next_token(self, encoder_out, input_X, hidden_state):
        logits, hidden_state = self.step(encoder_out, input_X, hidden_state)
        return logits.argmax(-1), hidden_state

    def decoding(self, encoder_out, decoder_X, hidden_state):
        res = []
        for i in range(decoder_X.shape[1]):
            logits, hidden_state = self.step(encoder_out, decoder_X[:, [i]], hidden_state)
            res.append(logits)
        return torch.cat(res, 1)

    def forward(self, encoder_X, decoder_X):
        encoder_out, state = self.enc(self.enc_emb(encoder_X))
        return self.decoding(encoder_out, decoder_X, state)
