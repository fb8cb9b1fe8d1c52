"""What verl has for calling tools, by release."""

TOOL_FORMATS = ("hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4")
"""Parsers of calls, for `multi_turn.format` (verl 0.9.1, experimental/agent_loop/tool_parser.py). A file that is loaded
into the workers may register more."""

GONE_FORMATS = ("qwen", "llama3_json")
"""Formats of older examples and comments, for which verl 0.9.1 has no parser."""

TOOL_CLASSES = "verl.tools."
"""Begins the names of classes that verl had for search, MCP, code and gsm8k up to 0.7.1. #6126, #6300 and #6302 took
them out before 0.8; what is left there is for deriving one's own (verl 0.9.1, tools/base_tool.py)."""
TOOL_CLASSES_UNTIL = (0, 8)
"""The first release without them."""
