"""An encoder-decoder with attention, and its data: pairs of symbol sequences."""
