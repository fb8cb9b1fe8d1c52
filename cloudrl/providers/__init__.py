"""Where a cluster lives: the interface is in `model`, who implements it in `registry`."""
