"""Numbers that agent and client have to agree on."""

CPUS_PER_GPU = 3
"""verl 0.9.1 asks Ray for {CPU: 3, GPU: 1} a worker (single_controller/ray/base.py, max_colocate_count).

Whatever the job: what its trainer reserves besides is compared with the cluster when it is planned
(`cloudrl.verl.placement.queue_room`)."""
MAX_RANGES = 16_384
MAX_RANGES_BYTES = 64 << 20
"""The most that one request may ask for of a file, in so many short ranges and bytes."""
CASTS = {("F32", "BF16"): 4, ("F32", "F16"): 4}
"""What an agent casts: (stored, wanted), as safetensors names them -> bytes of a stored value. The reader does a cast
that saves no byte."""
