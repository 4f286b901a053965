"""A checker for attention modules that students write."""

# The parts that a file may have, with their signatures.
PARTS = {
    "SelfAttention": "SelfAttention(width), forward(x, mask): (B, T, D) and (B, T) -> (B, T, D)",
    "masked_mean": "masked_mean(x, mask): (B, T, D) and (B, T) -> (B, D)",
    "positional_encoding": "positional_encoding(length, width) -> (length, width)",
    "PlainLayer": "PlainLayer(width), forward(x, mask): (B, T, D) and (B, T) -> (B, T, D)",
    "ResidualLayer": "ResidualLayer(width), forward(x, mask): (B, T, D) and (B, T) -> (B, T, D)",
    "Classifier": "Classifier(vectors, classes, positions=None, cls=False), "
    "forward(tokens, lengths): (B, T) and (B,) -> (B, classes)",
    "test_accuracy": "test_accuracy(model, train_loader, test_loader) -> number",
}
