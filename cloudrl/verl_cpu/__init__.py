"""A plug-in through which unmodified verl 0.9.1 trains on CPUs.

verl finds `cloudrl.verl_cpu.plugin` through its entry-point group `verl.plugins` each time it is imported.
The plug-in does nothing unless the job says `trainer.device=cpu`.

    plugin       decides whether this is a CPU job, and registers the rest with verl
    platform     what verl asks of a device, answered for the CPU
    engine       verl's FSDP engines on the device "cpu"
    rollout      verl's side of a rollout replica: placement, and weights from trainer to server
    server       the Ray actor that generates for one replica
    generation   batched decoding with a Hugging Face model
    sampling     temperature, top-k and top-p, as pure functions
    replay       verl's replay buffer, polled often
    reward       the score of the `addition` data set
    search_reward  the score of the `capitals` data set
    tiny_model   a Qwen2 of about 100,000 parameters, written without torch
    pretraining  lets it read for some seconds
    texts        what it reads: sums, or conversations with a search

Importing this package imports nothing: `tiny_model`, `texts` and `reward` need the standard library only.
"""
