"""What is sent to W&B."""
