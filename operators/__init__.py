"""What happens to a batch: one operator a file."""
