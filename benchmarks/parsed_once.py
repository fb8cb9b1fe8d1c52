"""OmegaConf that parses each text with `${...}` once a process: half of the time of composing a configuration."""

import functools

import omegaconf.base
import omegaconf.grammar_parser


def parse_once() -> None:
    """From here on; parse trees are only read."""
    omegaconf.base.parse = functools.lru_cache(maxsize=4096)(omegaconf.grammar_parser.parse)
