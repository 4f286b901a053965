"""Reads texts and makes padded batches. From nn, it uses only the ids and the mask."""
