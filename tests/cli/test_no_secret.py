"""A secret is planted wherever one can be given, also in a wrong form; it stands in nothing that is printed or kept."""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from fake_local import FakeLocal

import cloudrl
from cloudrl.cli.main import _where_raised
from cloudrl.errors import CloudrlError

pytestmark = pytest.mark.io

MARK = "m4rk7Zq"
RAW = [
    MARK,
    f"[{MARK}]",
    f"[[{MARK}]]",
    f"{{{MARK}: {MARK}}}",
    f"{{value: {MARK}}}",
    f"*{MARK}",
    f"!{MARK} x",
    f"&{MARK} x y",
    f"!!python/object:{MARK} x",
    f'"{MARK}',
    f"'{MARK}",
    f'"{MARK}\\q"',
    f"[{MARK}",
    f"{{{MARK}",
    f"{MARK}: {MARK}",
    f"@{MARK}",
    f"%{MARK}",
    f"`{MARK}",
    f"? {MARK}",
    f"- {MARK}",
    f'"{MARK}\\ud800"',
    f'"{MARK}\\0"',
    f'"{MARK}\\n"',
    f"| {MARK}",
    f"> {MARK}",
    f"{MARK} #",
    f"${{{MARK}}}",
    f"$({MARK})",
    f"{{? [{MARK}] : {MARK}}}",
    f"{MARK}\n  {MARK}",
    f"{MARK}=",
    f"\t{MARK}",
    f"<<: {MARK}",
    f"{MARK}, {MARK}: [",
    f"2026-13-77 {MARK}",
    f"{MARK}\x07",
    f"{MARK}\x85{MARK}",
]
"""What stands where the text of a secret should."""
FILES = [
    "env:\n  HF_TOKEN: {}\n",
    "env: {{HF_TOKEN: {}}}\n",
    "env: [HF_TOKEN={}]\n",
    "env: HF_TOKEN={}\n",
    "env:\n- HF_TOKEN: {}\n",
    "env:\n  HF-TOKEN: {}\n",
    "env:\n  HF_TOKEN={}: x\n",
    "env:\n  HF_TOKEN: {0}\n  HF_TOKEN: {0}\n",
    "HF_TOKEN: {}\n",
    "HF_TOKEN={}\n",
    "gpu:\n  HF_TOKEN: {}\n",
    "data:\n- token: {}\n",
    "env_vars:\n  HF_TOKEN: {}\n",
    "env_vars: [HF_TOKEN={}]\n",
    "secrets: [HF_TOKEN={}]\n",
    "dstack:\n  registry_auth:\n    username: me\n    password: {}\n",
    "overrides:\n  +trainer.api_key: {}\n",
    "overrides: +trainer.api_key={}\n",
]
SETS = [
    "env.HF_TOKEN={}",
    "env={{HF_TOKEN: {}}}",
    "env=[HF_TOKEN={}]",
    "env=HF_TOKEN={}",
    "env.HF_TOKEN {}",
    "env.HF_TOKEN: {}",
    "HF_TOKEN={}",
    "env.HF_TOKEN.x={}",
    ".HF_TOKEN={}",
    "dstack.registry_auth.password={}",
    "dstack={{registry_auth: {{username: me, password: {}}}}}",
    "secrets=[HF_TOKEN={}]",
    "gpu={{HF_TOKEN: {}}}",
]
ENVS = ["HF_TOKEN={}", "HF_TOKEN: {}", "HF_TOKEN {}", "HF-TOKEN={}", "HF_TOKEN:{}", "=HF_TOKEN={}"]
OVERRIDES = [
    "+trainer.api_key={}",
    "+trainer.api_key {}",
    "trainer.api_key: {}",
    "++x.hf_token=[{}",
    "+trainer..api_key={}",
]
DATABASE = f"DATABASE_URL=postgres://me:{MARK}@db/x"
WITH_A_LOGIN = [
    ("task", "create", "new", "--env", DATABASE, "--dry-run"),
    ("up", "new", "--on", "local", "--env", DATABASE, "--dry-run"),
    ("up", "new", "--on", "local", "--set", f"setup=[pip install -i https://me:{MARK}@h/simple x]", "--dry-run"),
    ("up", "new", "--on", "local", "--setup", f"export WANDB_KEY={MARK}", "--dry-run"),
    ("check", "grpo-tiny", "--model", f"https://me:{MARK}@h/m"),
    ("check", f"https://me:{MARK}@h/r.yml"),
    ("submit", "grpo-tiny", "--data", f"https://me:{MARK}@h/d", "--dry-run"),
    ("submit", "grpo-tiny", "--runtime-env", f"https://me:{MARK}@h/e.yml", "--dry-run"),
    ("submit", "grpo-tiny", "--env", DATABASE, "--dry-run"),
    ("submit", "grpo-tiny", f"+trainer.wandb_key={MARK}", f"+trainer.login={{pg_password: {MARK}}}", "--dry-run"),
    ("retriever", "serve", f"http://me:{MARK}@127.0.0.1:1"),
]
URLS = ["http://me:{}@127.0.0.1:1", "me:{}@127.0.0.1:1", "me:{}", "http://127.0.0.1:1/?token={}"]


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.slow)])
def raws(request: pytest.FixtureRequest) -> list[str]:
    """Two of them, other ones in each place; with CLOUDRL_SLOW=1 all: five commands each take their time."""
    start = sum(request.node.callspec.params["text"].encode())
    return RAW if request.param == "all" else [RAW[(start + step) % len(RAW)] for step in (0, 17)]


@pytest.fixture
def local(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLocal]:
    monkeypatch.setenv("CLOUDRL_DEBUG", "1")
    with FakeLocal("lab") as local:
        yield local


def kept(folder: Path) -> list[str]:
    """Files that have the secret in them, those meant for the tests' own input aside."""
    files = [each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("given")]
    return [str(each) for each in files if MARK.encode() in each.read_bytes() and each.stat().st_mode & 0o077]


class Typist:
    """Types commands and collects those that show the secret."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self.found: list[str] = []
        self.codes: set[object] = set()

    def types(self, *words: str) -> None:
        """In this process; a traceback is a find, too."""
        from cloudrl.cli.main import main

        self._monkeypatch.setattr(sys, "argv", ["cloudrl", *words])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except Exception as error:  # noqa: BLE001 - a traceback would show it
            code = repr(error)
        said = self._capfd.readouterr()
        self.codes.add(code)
        if MARK in said.out + said.err or code not in (0, 2, 5):
            lines = [each for each in (said.out + said.err).splitlines() if MARK in each]
            self.found.append(f"{words} -> {code}: {lines[:2]}")


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Typist:
    return Typist(monkeypatch, capfd)


@pytest.mark.parametrize("text", FILES)
def test_in_a_file(local: FakeLocal, typist: Typist, home: Path, text: str, raws: list[str]) -> None:
    path = home / "given.yml"
    for raw in raws:
        if "={}:" in text and any(end in raw for end in "\n\x85"):
            continue  # then the secret is the name of a field, which has to be shown
        path.write_bytes(text.format(raw).encode("utf-8", "surrogatepass"))
        typist.types("submit", str(path), "--dry-run")
        typist.types("check", str(path), "--json")
        typist.types("submit", "grpo-tiny", "--runtime-env", str(path), "--dry-run", "--json")
        typist.types("up", "new", "-f", str(path), "--on", "local", "--dry-run")
        typist.types("task", "create", "new", "-f", str(path), "--dry-run")
    assert typist.found == []
    assert kept(home) == []
    assert 2 in typist.codes


@pytest.mark.parametrize("text", SETS)
def test_in_an_assignment(local: FakeLocal, typist: Typist, home: Path, text: str, raws: list[str]) -> None:
    for raw in raws:
        typist.types("up", "new", "--set", text.format(raw), "--on", "local", "--dry-run", "--json")
        typist.types("task", "create", "new", "--set", text.format(raw), "--dry-run")
    assert typist.found == []
    assert kept(home) == []


@pytest.mark.parametrize("text", ENVS)
def test_in_a_variable(local: FakeLocal, typist: Typist, home: Path, text: str) -> None:
    for raw in (MARK, f"{MARK}\udcff", f"[{MARK}]", f"{MARK}\n{MARK}"):
        typist.types("submit", "grpo-tiny", "--env", text.format(raw), "--dry-run")
        typist.types("up", "new", "--env", text.format(raw), "--on", "local", "--dry-run")
        typist.types("run", "grpo-tiny", "--env", text.format(raw), "--dry-run")
    assert typist.found == []
    assert kept(home) == []


def test_in_the_environment(local: FakeLocal, typist: Typist, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (MARK, f"{MARK}\udcff", f"{MARK}\x1b[0m"):
        for name in (
            "HF_TOKEN",
            "WANDB_API_KEY",
            "MY_API_KEY",
            "RAY_AUTH_TOKEN",
            "CLOUDRL_RETRIEVER_TOKEN",
            "DSTACK_TOKEN",
        ):
            monkeypatch.setenv(name, value)
        typist.types("submit", "grpo-tiny", "--env", "MY_API_KEY", "--env", "HF_TOKEN", "--dry-run")
        typist.types("submit", "grpo-tiny", "trainer.logger=[console,wandb]", "--dry-run", "--json")
        typist.types("up", "new", "--env", "MY_API_KEY", "--on", "local", "--dry-run")
        typist.types("jobs", "list", "--address", "http://127.0.0.1:1")
        typist.types("retriever", "query", "x", "--url", "http://127.0.0.1:1")
        typist.types("fleet", "list")
    assert typist.found == []
    assert kept(home) == []


@pytest.mark.parametrize("text", OVERRIDES)
def test_in_an_override(local: FakeLocal, typist: Typist, home: Path, text: str, raws: list[str]) -> None:
    for raw in raws:
        typist.types("submit", "grpo-tiny", text.format(raw), "--dry-run")
        typist.types("check", "grpo-tiny", text.format(raw))
    assert typist.found == []
    assert kept(home) == []


@pytest.mark.parametrize("words", WITH_A_LOGIN, ids=lambda words: "-".join(words[:4:3]))
def test_in_a_url_that_is_no_address_of_ours(local: FakeLocal, typist: Typist, words: tuple[str, ...]) -> None:
    typist.types(*words)
    assert typist.found == []


@pytest.mark.parametrize("text", URLS)
def test_in_an_address(local: FakeLocal, typist: Typist, text: str) -> None:
    url = text.format(MARK)
    for words in (("jobs", "list"), ("jobs", "logs", "a"), ("submit", "grpo-tiny"), ("why", "a"), ("watch", "a")):
        typist.types(*words, "--address", url)
    typist.types("jobs", "status", f"ray://me:{MARK}@127.0.0.1:1/a")
    typist.types("retriever", "query", "x", "--url", url)
    assert typist.found == []


@pytest.mark.parametrize(
    "value", [[MARK], {"a": MARK}, (MARK,), f"{MARK}\ud800", f"{MARK}\0", MARK.encode(), {MARK}, object]
)
def test_in_python(value: object) -> None:
    """Also in the traceback that `cloudrl` shows with CLOUDRL_DEBUG, and in that of Python itself."""
    for make in (
        lambda: cloudrl.Cluster(name="a", env={"HF_TOKEN": value}),  # type: ignore[dict-item]
        lambda: cloudrl.Cluster(name="a", env=[f"HF_TOKEN={MARK}", value]),  # type: ignore[arg-type]
        lambda: cloudrl.Cluster(name="a", dstack={"registry_auth": {"username": "me", "password": value}}),
        lambda: cloudrl.recipe("grpo-tiny").replace(env={"HF_TOKEN": value}),
        lambda: cloudrl.recipe("grpo-tiny").with_overrides({"trainer.api_key": value}),
    ):
        with redirect_stderr(io.StringIO()) as said:
            try:
                made = make()
            except CloudrlError as error:
                sys.excepthook(type(error), error, error.__traceback__)
                said.write(_where_raised(error))
            else:
                assert made is not None
        assert MARK not in said.getvalue()
