"""Clusters as jobs of a Slurm cluster."""
