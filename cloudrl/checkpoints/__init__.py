"""What training leaves behind: the shards of every rank, checked and merged into a Hugging Face model."""
