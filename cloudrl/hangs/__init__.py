"""When a training stands still, and who keeps the others waiting. Pure functions over samples; nothing here looks.

    limits      how long a phase may take, and may be still, as this run and earlier ones have shown
    watch       samples of all nodes, one after the other -> phase, its age, suspicion, hang
    stacks      the text of a stack dump -> threads, phase, the frame that a person reads first
    blame       processes with their stacks -> who keeps the others waiting
    ray_rows    what Ray's state API says -> what can never be scheduled, actors that are dead
    ras         what NCCL's own monitor says -> ranks that lag behind in a collective
    rollout     verl's own line about unfinished prompts

The agent samples (`cloudrl.node.hang_watch`), so it travels: standard library only, Python 3.9.
"""
