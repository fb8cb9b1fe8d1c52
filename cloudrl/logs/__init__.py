"""Logs of jobs and clusters: what is kept of them, how it reads in the order of times, and the cause of a failure."""
