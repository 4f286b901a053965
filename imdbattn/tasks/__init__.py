"""What is trained: a file for each task."""
