"""What is sent with a cluster whoever starts it: the agent as one file, its options, and what search servers need."""
