"""Classification of reviews."""
