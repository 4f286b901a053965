"""Sources of texts, a file for each."""
