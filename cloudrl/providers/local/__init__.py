"""N nodes on this machine: the agents and the Ray of anywhere else, detached from the command that started them."""
