"""The lab without attention: the encoder's state starts the decoder."""

from torch import nn

VOCAB_SIZE = 27
EMBEDDING = 14
HIDDEN = 18


class Seq2SeqModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_in = nn.Embedding(VOCAB_SIZE, EMBEDDING)
        self.embed_out = nn.Embedding(VOCAB_SIZE, EMBEDDING)
        self.encoder = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
        self.decoder = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
        self.linear = nn.Linear(HIDDEN, VOCAB_SIZE)

    def encoding(self, encoder_X):
        _, hidden_state = self.encoder(self.embed_in(encoder_X))
        return hidden_state

    def decoding(self, decoder_X, hidden_state):
        out, hidden_state = self.decoder(self.embed_out(decoder_X), hidden_state)
        return self.linear(out), hidden_state

    def get_next_token(self, input_X, hidden_state):
        logits, hidden_state = self.decoding(input_X, hidden_state)
        return logits.argmax(dim=-1), hidden_state

    def forward(self, encoder_X, decoder_X):
        hidden_state = self.encoding(encoder_X)
        logits, _ = self.decoding(decoder_X, hidden_state)
        return logits
