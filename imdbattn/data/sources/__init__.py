"""Sources of texts, one file for each."""
