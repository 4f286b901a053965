"""The encoder-decoder lab with a bilinear score."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, EMB, HIDDEN = 26, 20, 24


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc_embedding = nn.Embedding(VOCAB, EMB)
        self.dec_embedding = nn.Embedding(VOCAB, EMB)
        self.encoder = nn.GRU(EMB, HIDDEN, batch_first=True)
        self.decoder = nn.GRU(EMB + HIDDEN, HIDDEN, batch_first=True)
        self.attention_W = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.classifier = nn.Linear(HIDDEN, VOCAB)

    def encoding(self, encoder_X):
        return self.encoder(self.enc_embedding(encoder_X))

    def get_context_vector(self, encoder_out, hidden_state):
        query = hidden_state.transpose(0, 1)
        score = torch.bmm(self.attention_W(encoder_out), query.transpose(1, 2))
        weight = F.softmax(score, dim=1)
        return torch.bmm(weight.transpose(1, 2), encoder_out)

    def get_next_token(self, encoder_out, input_X, hidden_state):
        context = self.get_context_vector(encoder_out, hidden_state)
        x = torch.cat([self.dec_embedding(input_X), context], dim=-1)
        out, hidden_state = self.decoder(x, hidden_state)
        logits = self.classifier(out)
        return logits.argmax(-1), hidden_state

    def decoding(self, encoder_out, decoder_X, hidden_state):
        outputs = []
        embedded = self.dec_embedding(decoder_X)
        for t in range(decoder_X.shape[1]):
            context = self.get_context_vector(encoder_out, hidden_state)
            x = torch.cat([embedded[:, t : t + 1], context], dim=-1)
            out, hidden_state = self.decoder(x, hidden_state)
            outputs.append(out)
        return self.classifier(torch.cat(outputs, dim=1))

    def forward(self, encoder_X, decoder_X):
        encoder_out, hidden_state = self.encoding(encoder_X)
        return self.decoding(encoder_out, decoder_X, hidden_state)
