"""What becomes of a script's variables: a job's, a cluster's, or nobody's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudrl.errors import SpecError
from cloudrl.protocol.secret_names import is_secret, mask_by_form, names_a_file
from cloudrl.scripts.sandbox import usual_variables
from cloudrl.spec.own_variables import refuse_own_variable

_SILENT = re.compile(
    r"PWD|OLDPWD|SHLVL|_|HOME|USER|LOGNAME|SHELL|TERM|LC_\w+|LANG|HOSTNAME|BASH_\w+|FUNCNAME|IFS|PS\d|COLUMNS|LINES"
    r"|SLURM_\w+|SLURMD_\w+|DSTACK_\w+|SKYPILOT_\w+"
)
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
_DROPPED: tuple[tuple[str, str], ...] = (
    (r"CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES", "Ray gives each worker its GPUs"),
    (
        r"PATH|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CUDA_HOME|CUDA_PATH|VIRTUAL_ENV|CONDA_\w+|CC|CXX|MANPATH",
        "a path of the script's machines; the image has its own",
    ),
    (
        r"MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|PET_\w+",
        "Ray and verl set it for each worker",
    ),
    (
        r"RAY_(ADDRESS|HEAD\w*|PORT|TMPDIR|DASHBOARD\w*|NODE\w*|IP)|HEAD_(NODE_)?(IP|ADDR|PORT)|IP_HEAD|ip_head|port",
        "cloudrl's agents start Ray, and know where it is",
    ),
    (r"PYTHONUNBUFFERED|NUMEXPR_MAX_THREADS", "cloudrl sets it"),
    (r"TRANSFORMERS_CACHE", "transformers 5 does not read it; HF_HOME is the place of models"),
)
_INTERFACES = r"NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME|HCCL_SOCKET_IFNAME|RAY_SOCKET_IFNAME"
_OF_MACHINES = re.compile(
    rf"{_INTERFACES}|NCCL_IB_(HCA|GID_INDEX|TC|SL|ADDR_RANGE|ROCE_VERSION_NUM)|UCX_NET_DEVICES|NVSHMEM_HCA\w*"
    r"|NCCL_NET_PLUGIN|NCCL_TOPO_FILE|FI_PROVIDER|NCCL_CROSS_NIC|NCCL_NET"
)
USUALLY_EMPTY = frozenset({
    "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "LD_PRELOAD", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "PKG_CONFIG_PATH", "MANPATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PS1",
    "PROMPT_COMMAND", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
})  # fmt: skip
"""Variables that scripts prepend to or look at, and that a fresh node has no value for."""
OF_AMD = re.compile(r"(HIP|ROCR)_VISIBLE_DEVICES|(HSA|RCCL|MIOPEN|ROCM)_\w+|HIP_PLATFORM")
_OF_NODES = re.compile(
    r"NCCL_\w+|RCCL_\w+|GLOO_\w+|UCX_\w+|FI_\w+|HSA_\w+|GPU_MAX_HW_QUEUES|TORCH_NCCL_\w+|HCCL_\w+|MSCCL_\w+|NVSHMEM_\w+"
    r"|HF_HOME|HF_DATASETS_CACHE|HF_HUB_CACHE|HUGGINGFACE_HUB_CACHE|XDG_CACHE_HOME|HF_ENDPOINT|TRITON_CACHE_DIR"
)


@dataclass(frozen=True)
class Variables:
    """A script's variables by what becomes of them.

    Attributes:
        job: Of the recipe.
        cluster: Of the nodes.
        secrets: Names of those that hold secrets.
        python_path: The folders of PYTHONPATH.
        dropped: Name -> why.
        wrong: What verl or Ray refuses in them, a sentence each.
    """

    job: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()


def sort_variables(env: Mapping[str, str], *, same_machines: bool) -> Variables:
    """Sort the environment of a call.

    Args:
        env: All of it.
        same_machines: Whether the cluster is going to be on the script's own machines, as with Slurm: only there do
            names of network interfaces mean the same.
    """
    usual = set(usual_variables(env))
    job, cluster, dropped, secrets = dict[str, str](), dict[str, str](), dict[str, str](), list[str]()
    python_path: tuple[str, ...] = ()
    for name, value in env.items():
        if name in usual or _SILENT.fullmatch(name) or (name in USUALLY_EMPTY and not value):
            continue
        if name == "PYTHONPATH":
            python_path = tuple(filter(None, value.split(":")))
        elif (is_secret(name) and not names_a_file(name)) or mask_by_form(value) != value:
            secrets.append(name)
        elif reason := _reason(name, same_machines=same_machines):
            dropped[name] = reason
        elif _OF_NODES.fullmatch(name) or _OF_MACHINES.fullmatch(name):
            cluster[name] = value
        else:
            job[name] = value
    return Variables(job, cluster, tuple(secrets), python_path, dropped, tuple(_clashes(env)))


def names_amd(env: Mapping[str, str]) -> bool:
    """Whether variables say that the GPUs are AMD's."""
    return any(map(OF_AMD.fullmatch, env))


def _reason(name: str, *, same_machines: bool) -> str | None:
    for pattern, reason in _DROPPED:
        if re.fullmatch(pattern, name):
            return reason
    if _OF_MACHINES.fullmatch(name) and not same_machines:
        what = "the agents set it on each node" if re.fullmatch(_INTERFACES, name) else "other machines have others"
        return f"it is for the script's own machines: {what}; for the same ones: --env of the cluster"
    try:
        refuse_own_variable(name)
    except SpecError:
        return "cloudrl sets it for every process of a cluster"
    return None


def _clashes(env: Mapping[str, str]) -> list[str]:
    """Verl 0.9.1, single_controller/base/worker.py: _setup_env_cuda_visible_devices."""
    given = [name for name in _DEVICES[:3] if env.get(name)]
    if "ROCR_VISIBLE_DEVICES" in given and len(given) > 1:
        return [f"{' and '.join(given)} are set together: verl's workers refuse ROCR_VISIBLE_DEVICES beside the others"]
    if len(given) > 1 and len({env[name] for name in given}) > 1:
        return [f"{' and '.join(given)} have different values: verl's workers refuse that"]
    return []
