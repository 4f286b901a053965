"""Training and scoring one run folder."""
