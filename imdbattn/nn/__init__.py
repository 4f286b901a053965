"""The models: torch only, no files, no Lightning, no Hydra."""
