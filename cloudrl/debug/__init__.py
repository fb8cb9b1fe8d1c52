"""The debuggers of a cluster's processes, as a person at another machine uses them."""
