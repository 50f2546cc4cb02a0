"""`sojourn serve` as a process: what it prints, how it is asked, how it ends, and how it fails."""

import json
import re
import signal
import socket
import subprocess

import httpx
import pytest
from spawned import PYTHON, sojourn, variables_of

TINY = ("tiny:layers=1,hidden=64", "backend.threads=1")
PATH = "/v1/chat/completions"
HELLO = {"model": "m", "max_tokens": 6, "messages": [{"role": "user", "content": "Hello"}]}


class Served:
    """A running `sojourn serve`, which has printed where it is."""

    def __init__(self, *words: str) -> None:
        command = [*PYTHON, "-m", "sojourn", "serve", *TINY, "--port", "0", *words]
        self.process = subprocess.Popen(
            command, env=variables_of(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = []
        while not (self.lines and self.lines[-1].startswith("curl ")):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.lines.append(line.strip())
        self.base = re.search(r"http://\S+(?=/v1 )", "\n".join(self.lines))[0]

    def half(self) -> tuple[socket.socket, bytes]:
        """Sends the first half of a request, and returns once the server answers it; with it, the second half."""
        body = json.dumps(HELLO).encode()
        host, port = self.base.removeprefix("http://").split(":")
        one = socket.create_connection((host, int(port)))
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body[:20])
        while "sojourn_requests_running 1\n" not in httpx.get(f"{self.base}/metrics").text:
            pass
        return one, body[20:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.process:  # which closes its pipes
            self.process.kill()


@pytest.fixture(scope="module")
def server():
    with Served("--name", "mine", "--name", "gpt-4o", "--seed", "1") as found:
        yield found


def test_it_says_how_it_is_used_and_that_works(server, tmp_path):
    said = "\n".join(server.lines)
    assert "the model tiny:layers=1,hidden=64" in said
    assert "contexts of 2,048 tokens" in said
    done = subprocess.run(server.lines[-1] + " -s", shell=True, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_the_openai_client_is_answered(server):
    openai = pytest.importorskip("openai", reason="the client")
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["mine", "gpt-4o"]
    asked = {"model": "gpt-4o", "messages": HELLO["messages"], "max_tokens": 8, "seed": 3}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 8
    response = client.responses.create(model="mine", input="Hello", max_output_tokens=8)
    assert response.usage.output_tokens <= 8
    named = openai.OpenAI(base_url=f"{server.base}/s/agent-7/v1", api_key="none")
    assert named.chat.completions.create(**asked).choices[0].message.content == text


def test_what_runs_is_finished_and_what_is_new_is_told_to_come_again():
    with Served() as server:
        one, rest = server.half()
        server.process.send_signal(signal.SIGTERM)
        assert "1 requests are under way" in server.process.stderr.readline()
        refused = httpx.post(server.base + PATH, json=HELLO)
        health = httpx.get(f"{server.base}/health")
        one.sendall(rest)
        answer = one.makefile("rb").read()  # to its end, as the server closes the connection
        one.close()
        assert (refused.status_code, health.status_code) == (503, 503)
        assert int(refused.headers["Retry-After"]) > 0
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"finish_reason"' in answer
        assert server.process.wait(60) == 0


def test_what_does_not_end_in_time_is_cut_off():
    with Served("--grace", "0") as server:
        one, _ = server.half()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        assert "1 requests did not end in time" in server.process.stderr.read()
        one.close()


def test_a_second_signal_ends_it_at_once():
    with Served("--grace", "1000") as server:
        one, _ = server.half()
        server.process.send_signal(signal.SIGINT)
        server.process.stderr.readline()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 128 + signal.SIGTERM
        one.close()


def test_what_cannot_be_served_is_one_sentence(tmp_path):
    (tmp_path / "runs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, told in (
            (["runs/absent"], "there is no such run"),
            (["tiny", "--port", port], f"cannot listen on --host 127.0.0.1 --port {port}"),
            (["tiny", "--host", "no.such.host.invalid"], "cannot listen on --host no.such.host.invalid"),
            (["tiny", "--host", "0.0.0.0", "--token", "NO_SUCH_VARIABLE"], "no token in this environment variable"),
            (["tiny", "--top-p", "0"], "no token would be left"),
        ):
            done = sojourn(tmp_path, "serve", *words)
            assert (done.returncode, told in done.stderr) == (2, True), done
            assert len(done.stderr.splitlines()) == 1


def test_a_missing_extra_is_one_sentence(tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ImportError('there is none')")  # found first
    done = sojourn(tmp_path, "serve", "tiny", forked=False)
    assert done.returncode == 2
    assert "pip install 'sojourn[serve]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
