"""Reads texts and makes padded batches. Of nn it uses ids and the mask only."""
