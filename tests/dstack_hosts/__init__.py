"""Stand-in hosts for the real dstack server: `Lab` makes them, `README.md` says what they are.

with Lab(hosts=2) as lab:
    lab.create_fleet()
    lab.run("dstack", "apply", "-y", "-d", "-f", "task.dstack.yml", cwd=folder)
    lab.hosts[1].kill()
"""

from .lab import Lab, LabUnavailable

__all__ = ["Lab", "LabUnavailable"]
