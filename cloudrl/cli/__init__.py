"""The command line: the only part of cloudrl that prints, asks or exits."""
