"""The lab with recurrent layers that have time first, and probabilities kept for a picture."""

import torch
from torch import nn

config = {"vocab": 29, "emb": 10, "hidden": 12}


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        V, E, H = config["vocab"], config["emb"], config["hidden"]
        self.emb_enc, self.emb_dec = nn.Embedding(V, E), nn.Embedding(V, E)
        self.gru_enc = nn.GRU(E, H)
        self.gru_dec = nn.GRUCell(E + H, H)
        self.attention_W = nn.Linear(H, H)
        self.fc = nn.Linear(H, V)

    def get_context_vector(self, encoder_out, hidden_state):
        projected = self.attention_W(hidden_state[-1])
        energy = (encoder_out * projected[:, None]).sum(-1)
        self.alpha = torch.softmax(energy, 1)
        return (self.alpha[..., None] * encoder_out).sum(1, keepdim=True)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        logits, hidden_state = self.decoding(encoder_out, input_X.view(-1, 1), hidden_state)
        return logits[:, -1].max(-1)[1], hidden_state

    def decoding(self, encoder_out, decoder_X, hidden_state):
        logits = []
        for x in self.emb_dec(decoder_X).unbind(1):
            context = self.get_context_vector(encoder_out, hidden_state)
            h = self.gru_dec(torch.cat([x, context[:, 0]], -1), hidden_state[0])
            hidden_state = h[None]
            logits.append(self.fc(h))
        return torch.stack(logits, 1), hidden_state

    def forward(self, encoder_X, decoder_X):
        out, hidden_state = self.gru_enc(self.emb_enc(encoder_X).transpose(0, 1))
        return self.decoding(out.transpose(0, 1), decoder_X, hidden_state)[0]
