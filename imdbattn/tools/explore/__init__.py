"""An interactive page for the attention of finished runs."""
