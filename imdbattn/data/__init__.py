"""Text in, padded batches out; knows no model."""
