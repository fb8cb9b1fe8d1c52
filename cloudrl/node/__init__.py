"""The agent that runs on every node, whoever started it.

Standard library only and Python 3.9, because it runs under whatever Python the image has. It travels as one
file, `cloudrl-node.pyz` (see `cloudrl.render.agent`). The parts, in the order in which data passes them:

    identity             which node this is
    tokens               the two secrets, from one key
    host_info, preflight what the machine has, and whether that is enough
    environment          the variables that Ray and all jobs inherit
    process, ray, fetch  the children: set-up commands, Ray, data and models
    node_state, attempts what is known of this node and, on rank 0, of all of them
    partial_starts       starts on which other nodes never came
    server, replication  HTTP to clients and between agents (`cloudrl.protocol`)
    agent                the phases, one after the other
"""
