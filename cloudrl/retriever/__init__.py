"""Search over a corpus of passages by Search-R1's HTTP interface: indexes, the server, and what builds and asks them.

It runs in verl's images: numpy, torch, transformers, aiohttp and pydantic are there; of cloudrl it needs only `errors`.
"""
