"""Function tools for verl's tool agent. Each is one file, which travels with the job; nothing imports them.

A job names one as `cloudrl://tools/search.py`, under `actor_rollout_ref.rollout.multi_turn.function_tool_path`.
"""
