"""The configuration of a Slurm site, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .gpus import Gpus

CONTROLLER_PORT, NODE_PORT = 6817, 6818  # Slurm's own
CPUS = 8
MEMORY_MB = 64000
JOB_LOG = "/var/log/slurm/jobcomp.log"

_SETTINGS = {
    "ClusterName": "lab",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "StateSaveLocation": "/var/spool/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "MpiDefault": "none",
    "ReturnToService": "2",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": str(MEMORY_MB // CPUS),
    "SlurmdParameters": "config_overrides",  # believe this file: the machine has other processors
    "GresTypes": "gpu",
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobCompType": "jobcomp/filetxt",
    "JobCompLoc": JOB_LOG,
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
    "KillWait": "10",
    "SlurmdTimeout": "10",
    "PropagateResourceLimits": "NONE",
}
_CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
"""


def slurm_conf(controller: str, nodes: Sequence[str], gpus: Gpus, *, cgroups: bool, settings: Mapping[str, str]) -> str:
    """The text of slurm.conf.

    Args:
        controller: host name of the controller.
        nodes: names of the compute nodes.
        gpus: of each node.
        cgroups: whether jobs are tracked by control groups, or else by parents of processes.
        settings: what a test wants otherwise.
    """
    tracking = {
        "ProctrackType": "proctrack/cgroup" if cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if cgroups else "task/none",
    }
    lines = {"SlurmctldHost": controller, **_SETTINGS, **tracking, **settings}
    gres = f" Gres={gpus.gres}" if gpus.gres else ""
    names = ",".join(nodes)
    return "".join(f"{key}={value}\n" for key, value in lines.items()) + (
        f"NodeName={names} CPUs={CPUS} RealMemory={MEMORY_MB}{gres} State=UNKNOWN\n"
        f"PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
    )


def cgroup_conf(*, cgroups: bool) -> str:
    """The text of cgroup.conf."""
    return _CGROUP if cgroups else ""
