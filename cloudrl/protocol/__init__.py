"""What agent and client say to each other, once. Standard library only, Python 3.9."""
