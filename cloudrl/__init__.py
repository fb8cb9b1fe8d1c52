"""cloudrl: cloud-portable reinforcement-learning training of LLMs."""

from __future__ import annotations

__version__ = "0.1.0"
