"""The files that hold a checkpoint, and the model that they make. Pure: no network, no cluster."""
