"""N nodes on this machine: the same agents and the same Ray as anywhere, detached from the command that started them."""
