"""Reads texts and makes padded batches; independent of the models."""
