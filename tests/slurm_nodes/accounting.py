"""Slurm's database of jobs on the login node: the real slurmdbd over a MariaDB that only the node can reach."""

from __future__ import annotations

from .config import File

START = "/opt/lab/start-accounting"
SETTINGS = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "login"}
_SLURMDBD = """\
DbdHost=login
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
PidFile=/run/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
"""
_SCRIPT = """\
#!/bin/sh
# --skip-grant-tables: no users, so no tables of them to be made first.
mkdir -p /run/mysqld /var/lib/lab-mysql
mariadbd --no-defaults --user=root --datadir=/var/lib/lab-mysql --skip-grant-tables --skip-networking \
    --socket=/run/mysqld/mysqld.sock --innodb-buffer-pool-size=16M --innodb-log-file-size=8M \
    --innodb-flush-log-at-trx-commit=0 >/var/log/mariadbd.log 2>&1 &
for i in $(seq 400); do test -S /run/mysqld/mysqld.sock && break; sleep 0.05; done
slurmdbd
for i in $(seq 400); do
    sacctmgr --immediate add cluster lab >/dev/null 2>&1 && exit
    sleep 0.05
done
cat /var/log/mariadbd.log /var/log/slurm/slurmdbd.log
exit 1
"""


def files() -> dict[str, File]:
    """What the login node has for it."""
    return {"/etc/slurm/slurmdbd.conf": File(_SLURMDBD, 0o600), START: File(_SCRIPT, 0o755)}
