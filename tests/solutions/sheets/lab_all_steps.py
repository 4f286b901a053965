"""The decoder runs over all steps at once, and the contexts follow it."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, HID = 27, 18


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, HID)
        self.encoder = nn.GRU(HID, HID, batch_first=True)
        self.decoder = nn.GRU(HID, HID, batch_first=True)
        self.attention_W = nn.Linear(HID, HID, bias=False)
        self.out = nn.Linear(2 * HID, VOCAB)

    def get_context_vector(self, encoder_out, hidden_state):
        q = self.attention_W(hidden_state).permute(1, 0, 2)
        s = torch.matmul(q, encoder_out.mT)
        return torch.matmul(F.softmax(s, dim=2), encoder_out)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        o, hidden_state = self.decoder(self.emb(input_X), hidden_state)
        c = self.get_context_vector(encoder_out, hidden_state)
        return self.out(torch.cat([o, c], -1)).argmax(-1), hidden_state

    def decoding(self, encoder_out, decoder_X, hidden_state):
        o, _ = self.decoder(self.emb(decoder_X), hidden_state)
        s = torch.matmul(self.attention_W(o), encoder_out.mT)
        c = torch.matmul(s.softmax(-1), encoder_out)
        return self.out(torch.cat([o, c], -1))

    def forward(self, encoder_X, decoder_X):
        m, h = self.encoder(self.emb(encoder_X))
        return self.decoding(m, decoder_X, h)
