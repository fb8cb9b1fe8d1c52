"""Commands on a login node: what its users' shells and their `~/.ssh/config` do to them; ssh is a stand-in."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.providers.slurm import login
from cloudrl.providers.slurm.login import CommandFailed, Login

pytestmark = pytest.mark.io

THERE = Login("me@login")
SSH = """\
#!/bin/sh
case "$*" in *"-O check"*) exit 0 ;; esac
for command; do :; done
"""
BANNER = "echo 'Welcome to the cluster'; echo '12|RUNNING' ; "
Shell = Callable[[str], None]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Makes this text the login node: what ssh does with `$command`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "cloudrl"))
    monkeypatch.setattr(login, "_PROFILE", str(tmp_path / "profile"))
    (tmp_path / "profile").write_text("echo a profile\n")

    def put(text: str) -> None:
        (folder / "ssh").write_text(SSH + text + "\n")
        (folder / "ssh").chmod(0o755)

    return put


@pytest.mark.parametrize("host", ["", "me@login"])
def test_a_command_has_its_input_output_and_status(shell: Shell, host: str) -> None:
    shell('exec sh -c "$command"')
    assert Login(host).run("printf", "%s|", "a b", "it's", "$HOME", "\\n!") == "a b|it's|$HOME|\\n!|"
    assert Login(host).shell("cat", b"of the pipe\n") == "of the pipe\n"
    with pytest.raises(CommandFailed, match=r"sh on .*: it is broken$"):
        Login(host).run("sh", "-c", "echo it is broken >&2; exit 3")
    with pytest.raises(CommandFailed, match=r"sh on .*: status 3$"):
        Login(host).run("sh", "-c", "exit 3")


def test_what_a_profile_prints_is_not_of_the_command(shell: Shell) -> None:
    shell(BANNER + 'exec sh -c "$command"')
    assert THERE.run("echo", "13") == "13\n"
    with pytest.raises(CommandFailed, match=r": its own words$"):
        THERE.shell("echo its own words; false")


def test_a_login_shell_need_not_be_like_sh(shell: Shell) -> None:
    """This one splits words by quotes and knows nothing else: no `$(...)`, no `&&`, no `{`."""
    shell('printf %s "$command" | xargs sh -c \'exec "$0" "$@"\'')
    assert THERE.shell("{ true && echo $((1 + 1)); }") == "2\n"


def test_slurm_is_found_where_only_login_shells_have_it(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual/sh").symlink_to("/bin/sh")
    shell(f'PATH={tmp_path}/usual; exec sh -c "$command"')
    (tmp_path / "profile").write_text(f"echo noise; PATH=$PATH:{tmp_path}/slurm\n")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/squeue").write_text("#!/bin/sh\necho a job\n")
    (tmp_path / "slurm/squeue").chmod(0o755)
    assert THERE.run("squeue") == "a job\n"


def test_a_job_in_which_this_program_runs_says_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun and sbatch would take its CPUs, memory and GPUs for what is asked."""
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "2000")
    monkeypatch.setenv("SLURM_CONF", "/etc/of the site/slurm.conf")
    shown = 'echo "${SLURM_MEM_PER_CPU:-none} ${SLURM_CONF:-none}"'
    assert Login().shell(shown) == "none /etc/of the site/slurm.conf\n"
    relay = subprocess.run(Login().words(shown), env={}, capture_output=True, text=True, check=True, timeout=60)
    assert relay.stdout == "none /etc/of the site/slurm.conf\n"  # as ssh starts its ProxyCommand


def test_ssh_knows_where_a_kerberos_ticket_lies(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", "KEYRING:persistent:1000")
    shell('exec sh -c "$command"')
    assert THERE.shell("echo $KRB5CCNAME") == "KEYRING:persistent:1000\n"


def test_what_only_a_terminal_is_for_is_left_out_of_the_users_ssh_config(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  RemoteCommand tmux\n  RequestTTY force\n  ControlMaster auto\n  User somebody\n")
    ssh, *words = THERE.words("squeue")
    words = ["-G", "-F", str(config), *words[: words.index("--")], "me@login"]
    said = subprocess.run([ssh, *words], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert {"controlmaster false", "requesttty false", "batchmode yes"} <= set(said)
    assert not [line for line in said if line.startswith("remotecommand")]


def test_a_connection_that_breaks_is_no_answer_of_the_command(shell: Shell) -> None:
    shell("echo 'Connection to login closed by remote host.' >&2; exit 255")
    with pytest.raises(ConnectionFailed, match=r"^ssh to me@login: Connection to login closed") as error:
        THERE.run("test", "-s", "a secret")
    assert not isinstance(error.value, CommandFailed)


def test_without_ssh_there_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CloudrlError, match="there is no ssh on this machine"):
        THERE.run("squeue")


def test_a_host_is_no_option(shell: Shell, tmp_path: Path) -> None:
    shell(f'printf "%s " "$@" >>{tmp_path}/words; exec sh -c "$command"')
    Login("-oProxyCommand=false").run("true")
    assert "-- -oProxyCommand=false" in (tmp_path / "words").read_text()
    assert shlex.split((tmp_path / "words").read_text())
