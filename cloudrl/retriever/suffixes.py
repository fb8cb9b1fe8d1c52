"""How files of passages end."""

SUFFIXES = (".jsonl", ".parquet", ".txt", ".md")
