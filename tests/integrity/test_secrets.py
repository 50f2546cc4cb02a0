"""Keys: taken from the environment by name, refused in a config, and in nothing that is written, shown or handed on."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import tomllib
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import trained_run
from starlette.testclient import TestClient
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.envs.chromium import find_chromium
from sojourn.envs.grader import Grader
from sojourn.envs.sandbox import Entry, Tree
from sojourn.envs.variables import inherited_variables
from sojourn.errors import ActionError, ConfigError, InfrastructureError, cause
from sojourn.models.endpoint import Endpoint
from sojourn.record.run import RunFolder
from sojourn.rollout.limits import Limits
from sojourn.secrets import MASK, masked, masked_table
from sojourn.train.resolve import resolve
from sojourn.view.server import application
from sojourn_worlds.adapters.child import Interpreter

CANARY = "Kq7canaryW3birdZ9sings"
SERVER = Path(__file__).with_name("keyed_server.py")
KEYS = {  # a value that nobody may write into a config, by where it stands
    "env.headers.Authorization": f"Bearer {CANARY}",
    "env.headers.X-Api-Key": "short",
    "env.headers.X-Tenant": CANARY + "0123",
    "env.environment.SERVICE_KEY": CANARY,
    "env.environment.DATABASE_URL": f"postgres://me:{CANARY}@host/db",
    "env.url": f"https://host/mcp?api_key={CANARY}",
    "env.base_url": f"https://me:{CANARY}@host/v1",
    "env.options.password": CANARY,
    "env.system": f"Use sk-{CANARY}.",
    "env.command": ["serve", "--api-key", CANARY],
    "env.judge.api_key": CANARY,
    "record.sinks.0.token": CANARY,
    "record.tags": [f"ghp_{CANARY}"],
    "name": "AKIA" + "IOSFODNN7EXAMPLE",
    "model.name": f"hf_{CANARY}",
    "env.check": f"xoxb-{CANARY}",
    "env.text": f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
    "env.other": "q8Zr5Tn2Wx9Lm4Vb7Hy1Kd6Pf3Gs0Jc5",
}
PLAIN = {  # what looks a little like one
    "model.name": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "model.revision": "a" * 39 + "1",
    "record.folder": "/tmp/pytest-of-root/pytest-12/test_secrets_0/runs",
    "env.headers.Accept": "text/event-stream",
    "env.headers.Authorization": "Bearer ${MY_TOKEN}",
    "env.environment.LEDGER": "{folder}/ledger.json",
    "env.environment.PYTHONPATH": "/usr/lib/python3.11/site-packages",
    "env.environment.TOKENIZERS_PARALLELISM": "false",
    "env.key": "OPENAI_API_KEY",
    "env.api_key": "OPENAI_API_KEY",
    "env.url": "https://host/mcp?api_key=${MY_TOKEN}",
    "env.system": "The password: swordfish. Basic arithmetic; bearer of news; token=3; task-of-the-scikit-learn-test.",
    "sampling.stop_strings": ["<|im_end|>"],
    "env.solution": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


def nested(path: str, value: Any) -> Any:
    """The value at a dotted path, in tables and arrays."""
    for key in reversed(path.split(".")):
        value = [value] if key.isdigit() else {key: value}
    return value


@pytest.mark.parametrize("path", KEYS)
def test_a_key_in_a_config_is_refused_and_not_repeated(path: str, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("")
    with pytest.raises(ConfigError, match=re.escape(path)) as refused:
        toml.Tables().merge(nested(path, KEYS[path]), "r.toml")
    said = str(refused.value)
    assert "environment variable" in said
    texts = [KEYS[path]] if isinstance(KEYS[path], str) else KEYS[path]
    with pytest.raises(ConfigError, match="looks like a key") as overridden:
        toml.read(file, [f"{path.replace('.0', '')}={json.dumps(KEYS[path])}"])
    assert not any(CANARY in told or texts[-1] in told for told in (said, str(overridden.value)))
    assert texts[-1] not in toml.dump(nested(path, KEYS[path]))
    assert tomllib.loads(toml.dump(nested(path, KEYS[path])))


@pytest.mark.parametrize("path", PLAIN)
def test_what_is_no_key_is_left_alone(path: str) -> None:
    tables = toml.Tables()
    tables.merge(nested(path, PLAIN[path]), "r.toml")
    assert tomllib.loads(toml.dump(tables.data)) == nested(path, PLAIN[path]) == masked_table(tables.data)


def test_a_config_that_was_masked_is_refused_with_the_remedy() -> None:
    recorded = tomllib.loads(toml.dump({"env": {"headers": {"Authorization": CANARY}}}))
    with pytest.raises(ConfigError, match=r"env.headers.Authorization was masked .*\$\{NAME\}"):
        toml.Tables().merge(recorded, "config.toml")


def test_no_error_repeats_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", CANARY)
    for said in (f"the server says {CANARY}", f"env.headers.X-Api-Key=pre{CANARY}", f"https://me:{CANARY}@host"):
        for error in (ConfigError(said), InfrastructureError(said)):
            assert CANARY not in str(error)
        assert CANARY not in cause(ValueError(said))
    assert str(ActionError(f"no such thing: {CANARY}")).endswith(CANARY), "what an agent is told is the same everywhere"
    for text in (
        f"env.headers.Authorization{CANARY}",
        f"env.headers.x={CANARY}",
        f"env.x.y={{headers={{a='{CANARY}'}}}}",
    ):
        with pytest.raises(ConfigError) as refused:
            toml.Tables({"env": 3}).override(text)
        assert CANARY not in str(refused.value)


def test_the_key_of_an_endpoint_is_named_and_the_key_itself_is_refused_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="never the key itself") as refused:
        Endpoint("http://127.0.0.1:1/v1", "m", f"plain-{CANARY}")
    assert CANARY not in str(refused.value)
    with pytest.raises(ConfigError, match='key = "MY_UNSET_KEY"'):
        Endpoint("http://127.0.0.1:1/v1", "m", "MY_UNSET_KEY")
    with pytest.raises(ConfigError, match="base_url holds what looks like a key"):
        Endpoint(f"http://me:{CANARY}@127.0.0.1:1/v1", "m")


@pytest.fixture
def world(tmp_path: Path) -> Mapping[str, Any]:
    """A world whose server is given a key, and says it to whoever calls its tool."""
    pytest.importorskip("mcp")
    rows = tmp_path / "tasks.jsonl"
    row = {
        "instruction": "Reveal the key.",
        "answer": "x",
        "who": "${SOJOURN_TEST_CANARY}",
        "solution": ["reveal()", "finish('x')"],
    }
    rows.write_text("\n".join(json.dumps({**row, "split": split}) for split in ("train", "test")))
    return {
        "name": "mcp",
        "instructions": str(rows),
        "command": [sys.executable, "-I", str(SERVER)],
        "environment": {"SERVICE_KEY": "${SOJOURN_TEST_CANARY}", "KEPT_IN": "{folder}"},
        "turns": 2,
    }


def test_a_variable_that_is_not_set_is_told_before_the_run(world: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="environment variable SOJOURN_TEST_CANARY, which is not set: export"):
        build("env", world)
    with pytest.raises(ConfigError, match=r"mcp.headers.Authorization .*which is not set"):
        build("env", {**world, "environment": {}, "headers": {"Authorization": "Bearer ${SOJOURN_TEST_CANARY}"}})


def outputs(run: Path, recipe: Path, folder: Path) -> dict[str, str]:
    """What every command and page says of a run."""

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), env={"COLUMNS": "400"})
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.output

    other = shutil.copytree(run, folder / "other")
    (other / "config.toml").write_text((run / "config.toml").read_text().replace("turns = 2", "turns = 3"))
    found = {
        "dry": said("train", str(recipe), "--dry"),
        "runs": said("runs", str(run)) + said("runs", str(run), "--json"),
        "diff": said("runs", str(run), str(other), "--diff") + said("runs", str(run), str(other), "--diff", "--json"),
        "show": said("show", str(run)),
        "report": said("report", str(run), "--out", str(folder / "report.html")),
    }
    for format, name in {"prov": "a.json", "adp": "b.jsonl", "chat": "c.jsonl"}.items():
        found[format] = said("export", str(run), "--format", format, "--out", str(folder / name))
    found |= {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".html", ".json", ".jsonl")}
    client = TestClient(application([run, other]), base_url="http://127.0.0.1", raise_server_exceptions=False)
    waiting, pages = ["/", f"/diff?run={run.name}&run=other"], dict[str, str]()
    while waiting and len(pages) < 60:
        if (address := waiting.pop()) not in pages:
            pages[address] = client.get(address).text
            waiting += [link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="(/[^"#]*)', pages[address])]
    assert len(pages) > 10
    return found | pages


def test_a_run_with_a_key_holds_and_shows_it_nowhere(world, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    monkeypatch.chdir(tmp_path)
    table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in world.items() if key != "environment")
    given = ", ".join(f'{key} = "{value}"' for key, value in world["environment"].items())
    override = f"env={{{table}, environment = {{{given}}}}}"
    run = trained_run.train(tmp_path / "run", override, "sampling.max_tokens=24", "agent.choices=false")
    held = {str(path): path.read_bytes().lower() for path in run.rglob("*") if path.is_file()}
    for path in run.rglob("*.npz"):
        with zipfile.ZipFile(path) as arrays:
            held |= {f"{path} {name}": arrays.read(name).lower() for name in arrays.namelist()}
    assert len(held) > 10
    assert [path for path, data in held.items() if CANARY.lower().encode() in data] == []
    assert any(b"${sojourn_test_canary} of [" in data for data in held.values()), "the tool was called, and said it"
    resolved = resolve(toml.read(run))  # the run folder is a config: the name of the variable has survived
    assert dict(resolved.recipe.env.environment) == world["environment"]
    (tmp_path / "r.toml").write_text(toml.dump(resolved.table))
    (tmp_path / "told").mkdir()
    for place, text in outputs(run, tmp_path / "r.toml", tmp_path / "told").items():
        assert CANARY not in text, place


def test_what_an_older_run_recorded_is_shown_nowhere(tmp_path, monkeypatch) -> None:
    """A config.toml that holds a key, as it was written before keys were refused."""
    run = trained_run.train(tmp_path / "run")
    text = (run / "config.toml").read_text()
    recipe = tmp_path / "r.toml"
    recipe.write_text(text)
    keys = f'options = {{ password = "{CANARY}" }}\nheaders = {{ Authorization = "Bearer {CANARY}" }}\n'
    (run / "config.toml").write_text(text.replace("[env]\n", f"[env]\n{keys}"))
    assert CANARY not in str(RunFolder.read(run).config)
    assert RunFolder.read(run).config["env"]["options"] == {"password": MASK}
    (tmp_path / "told").mkdir()
    for place, said in outputs(run, recipe, tmp_path / "told").items():
        assert CANARY not in said, place
    (run / "config.toml").write_text(f"{keys}\n[[broken")
    assert CANARY not in RunFolder.read(run).config_text


async def played(world: Mapping[str, Any]) -> str:
    env = build("env", world).value.make(build("env", world).value.tasks("train")[0])
    try:
        await env.start()
        return (await env.call("reveal")).text
    finally:
        await env.close()


async def test_a_server_gets_its_key_and_nothing_else_of_ours(world, monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    monkeypatch.setenv("OTHER_API_KEY", "not-for-you-12345")
    said = await played(world)
    assert said.startswith("${SOJOURN_TEST_CANARY} of [")
    assert "OTHER_API_KEY" not in said


async def test_what_a_server_tells_of_itself_comes_without_its_key(world, monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    family = build("env", {**world, "form": "both"}).value
    env = family.make(family.tasks("train")[0])
    try:
        told = str(await env.start())
    finally:
        await env.close()
    assert "The key is ${SOJOURN_TEST_CANARY}." in told
    assert CANARY not in told


async def test_no_task_names_a_variable_of_ours(world, monkeypatch) -> None:
    """Tasks may come from anywhere: what is put in for {folder} and for keys of the task is not read again."""
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    given = {**world["environment"], "SERVICE_KEY": "{who}"}
    assert (await played({**world, "environment": given})).startswith("${SOJOURN_TEST_CANARY} of [")


async def test_a_server_that_fails_with_its_key_on_its_lips(world, monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    failing = {
        **world,
        "command": [sys.executable, "-I", "-c", "import os; raise SystemExit(os.environ['SERVICE_KEY'])"],
    }
    with pytest.raises(InfrastructureError, match="cannot be used") as failed:
        await played(failing)
    assert CANARY not in str(failed.value)
    assert CANARY not in cause(failed.value)


async def test_headers_and_url_carry_the_key_to_a_server_on_http(world, monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_TEST_CANARY", CANARY)
    heard: list[tuple[str, str | None]] = []

    class Listens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((self.path, self.headers["Authorization"]))
            self.send_error(403, f"no to {CANARY}")

        def log_message(self, format: str, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Listens) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        remote = {key: value for key, value in world.items() if key not in ("command", "environment")}
        remote["url"] = f"http://127.0.0.1:{server.server_address[1]}/mcp?api_key=${{SOJOURN_TEST_CANARY}}"
        remote["headers"] = {"Authorization": "Bearer ${SOJOURN_TEST_CANARY}"}
        with pytest.raises(InfrastructureError) as failed:
            await played(remote)
        server.shutdown()
    assert heard[0] == (f"/mcp?api_key={CANARY}", f"Bearer {CANARY}")
    assert CANARY not in str(failed.value)


def test_programs_that_we_start_inherit_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("https_proxy", f"http://me:{CANARY}@proxy:3128")
    monkeypatch.setenv("MY_SETTINGS", CANARY)
    assert CANARY not in str(inherited_variables())
    assert inherited_variables()["PATH"] == os.environ["PATH"]
    foreign = Interpreter("verifiers", sys.executable, "", environment={"OPENAI_API_KEY": "${OPENAI_API_KEY}"})
    assert foreign.surroundings["OPENAI_API_KEY"] == CANARY
    assert CANARY not in str({**foreign.surroundings, "OPENAI_API_KEY": ""})
    with pytest.raises(ConfigError, match=r"verifiers\.environment\.KEY holds what looks like a key"):
        Interpreter("verifiers", sys.executable, "", environment={"KEY": CANARY})


def environments() -> dict[str, str]:
    """What the processes below this one were given, by their names."""
    found: dict[str, str] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[f"{process.name()} {process.pid}"] = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
        except (OSError, psutil.Error):
            continue
    return found


@pytest.mark.parametrize(
    ("name", "program", "fields"),
    [
        ("scienceworld", "java", {"experiments": ["find-plant"]}),
        ("textworld_express", "java", {"games": ["coin"]}),
        ("miniwob", "chrom", {"pages": ["click-button"]}),
        ("desktop", "bwrap", {"kinds": ["calculator"]}),
        ("python", "bwrap", {}),
    ],
)
async def test_no_program_of_a_world_is_given_our_keys(name, program, fields, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    try:
        family = build("env", {"name": name, **fields}).value
        if name == "miniwob":
            find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))
    if name != "miniwob" and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    opener, closer = getattr(family, "open", None), getattr(family, "close", None)
    if opener:
        await opener()
    env = family.make(family.tasks("train")[0])
    try:
        await env.start()
        seen = {who: given for who, given in environments().items() if program in who}
        assert seen
        assert [who for who, given in seen.items() if CANARY in given] == []
    finally:
        await env.close()
        if closer:
            await closer()


async def test_the_process_that_judges_is_given_no_keys(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    grader = Grader()
    assert await grader("bombs:right", "right", tree=Tree({"/task/a.txt": Entry.file("right")}))
    seen = environments()
    await grader.close()
    assert seen
    assert [who for who, given in seen.items() if CANARY in given] == []


def test_limits_are_not_keys() -> None:
    """Text that is told in errors stays readable."""
    for text in (
        f"turn 3 of {Limits()}",
        "unknown token: foo",
        "max_tokens=32, token_budget = 4096",
        "a basic mistake",
    ):
        assert masked(text) == text


@pytest.mark.parametrize("piece", ["-", "--a_", "eyJ-", "?a_", "a.", "token", "A1", "://a:"])
def test_long_texts_are_masked_in_time_that_grows_with_their_length(piece) -> None:
    """A client may send megabytes of anything, and a server masks them between its replies."""
    text = piece * (20_000 // len(piece))
    began = time.process_time()
    masked(text)
    assert time.process_time() - began < 1.0


def test_what_is_bounded_finds_keys_of_every_length_that_issuers_give() -> None:
    for key in (
        f"eyJ{'aB3_' * 200}.{'x' * 4000}.{'y' * 300}",
        "--my-service-access-token=abcd",
        "-----api-key=abcdefgh",
    ):
        assert "abcd" not in masked(f"say {key} now")
        assert "xxx" not in masked(f"say {key} now")
