"""A search for good settings by validation accuracy, with Optuna."""
