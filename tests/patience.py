"""How long tests wait before they fail."""

SLOWER = 3
"""How many times longer than on a quiet machine something may take: other tests run beside it, on two CPUs perhaps."""
