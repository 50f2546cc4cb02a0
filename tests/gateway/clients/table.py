"""The clients: the version of each, how it is started, and what the model says to it.

In commands, environments and files, `$base` is the base URL of the session, without the `/v1` that OpenAI's clients
want after it; `$bin`, `$programs`, `$home` and `$task` are folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tests.gateway.clients.task import (
    FUNCTIONS,
    FURTHER,
    PROMPT,
    Call,
    Compacting,
    Reply,
    Script,
    delegating,
    dspy,
    edits,
    shell,
)

Api = Literal["chat", "responses", "messages"]
KEY = "none"


@dataclass(frozen=True, kw_only=True)
class Client:
    """Holds one client with one API. `packages` are of PyPI (`name==version`) or, for a program of Node, of npm
    (`name@version`), the client's own first; clients with the same `packages` share an environment."""

    name: str
    api: Api
    packages: tuple[str, ...]
    script: Reply
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # by their paths in the home folder
    variant: str = ""  # names what is different, where a client has several rows with one API

    @property
    def key(self) -> str:
        return "_".join(filter(None, [self.name.replace("-", "_"), self.api, self.variant]))

    @property
    def npm(self) -> bool:
        return "==" not in self.packages[0]

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@" if self.npm else "==")[2]


def _program(name: str, program: str, packages: tuple[str, ...], *apis: Api, script: Reply = FUNCTIONS) -> list[Client]:
    """Returns a framework of Python, which a file of `programs/` uses, with each of its APIs."""
    return [
        Client(
            name=name, api=api, packages=packages, script=script,
            commands=(("$bin/python", f"$programs/{program}", api, "$base" if api == "messages" else "$base/v1"),),
        )
        for api in apis
    ]  # fmt: skip


DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
OPENAI = {"OPENAI_BASE_URL": "$base/v1", "OPENAI_API_BASE": "$base/v1", "OPENAI_API_KEY": KEY}

PROGRAMS = [
    *_program("openai", "openai_sdk.py", ("openai==3.57.0",), "chat", "responses"),
    *_program("anthropic", "anthropic_sdk.py", ("anthropic==2.14.0",), "messages"),
    *_program("openai-agents", "openai_agents.py", ("openai-agents==0.24.0",), "chat", "responses"),
    *_program(
        "langgraph", "langgraph_agent.py",
        ("langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"),
        "chat", "responses", "messages",
    ),
    *_program(
        "pydantic-ai", "pydantic_agent.py", ("pydantic-ai-slim[openai,anthropic]==2.68.0",), "chat", "responses",
        "messages",
    ),
    *_program(
        "smolagents", "smol_agent.py", ("smolagents[openai]==1.26.0",), "chat",
        script=Script(
            (Call("read", {"name": "first.txt"}), FUNCTIONS.read[1]), FUNCTIONS.write,
            Call("final_answer", {"answer": "It is done."}),
        ),
    ),
    *_program("google-adk", "adk_agent.py", ("google-adk==2.13.0", "litellm==1.110.2", "mcp==2.3.0"), "chat"),
    *_program("strands", "strands_agent.py", ("strands-agents[openai]==1.62.0",), "chat"),
    *_program("autogen", "autogen_agent.py", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"), "chat"),
    *_program("crewai", "crew_agent.py", ("crewai==1.15.30",), "chat"),
    *_program("dspy", "dspy_agent.py", ("dspy==3.4.1",), "chat", script=dspy),
]  # fmt: skip

AIDER = Client(
    name="aider", api="chat", packages=("aider-chat==0.86.2",), script=edits, environment=OPENAI,
    commands=tuple(
        ("$bin/aider", "--model", "openai/m", "--no-git", "--yes-always", "--edit-format", "whole",
         "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--restore-chat-history",
         "--message", prompt, "first.txt", "second.txt", "answer.txt")
        for prompt in (PROMPT, FURTHER)
    ),
)  # fmt: skip
MINI = Client(
    name="mini-swe-agent", api="chat", packages=("mini-swe-agent==2.4.6", "mcp==2.3.0"),
    script=replace(shell("bash", last=Call("bash", {"command": DONE})), idle=True),
    commands=(("$bin/mini", "-y", "--exit-immediately", "-m", "openai/m", "-o", "$home/run.json", "-t", PROMPT),),
    environment={**OPENAI, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors",
                 "MSWEA_GLOBAL_CONFIG_DIR": "$home", "MSWEA_SILENT_STARTUP": "1"},
)  # fmt: skip
_CODEX = (
    "-c", 'model_provider="g"',
    "-c", 'model_providers.g={name="g",base_url="$base/v1",env_key="KEY",wire_api="responses"}',
    "-c", "model_context_window=1000000", "-m", "m", "--skip-git-repo-check",
)  # fmt: skip
CODEX = Client(
    name="codex", api="responses", packages=("@openai/codex@0.169.0",), script=shell("exec_command", "cmd"),
    commands=(
        ("$bin/codex", "exec", "--sandbox", "danger-full-access", *_CODEX, PROMPT),
        ("$bin/codex", "exec", "--sandbox", "danger-full-access", "resume", "--last", *_CODEX, FURTHER),
    ),
    environment={"KEY": KEY, "CODEX_HOME": "$home"},
)  # fmt: skip
_CLAUDE = ("--dangerously-skip-permissions", "-p")
CLAUDE = Client(
    name="claude-code", api="messages", packages=("@anthropic-ai/claude-code@2.1.197",),
    script=shell("Bash", description="Works with files", timeout=9e3),
    commands=(("$bin/claude", *_CLAUDE, PROMPT), ("$bin/claude", "--continue", *_CLAUDE, FURTHER)),
    environment={"ANTHROPIC_BASE_URL": "$base", "ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_MODEL": "m", "IS_SANDBOX": "1",
                 "DISABLE_AUTO_COMPACT": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1"},
)  # fmt: skip
_OPENCODE = """{
  "provider": {"g": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$base/v1", "apiKey": "none"},
    "models": {"m": {"name": "m", "tool_call": true, "limit": {"context": 1000000, "output": 4096}}}}},
  "model": "g/m", "autoupdate": false, "share": "disabled", "permission": {"bash": "allow"}
}
"""
OPENCODE = Client(
    name="opencode", api="chat", packages=("opencode-ai@1.18.33",),
    script=shell("bash", description="Works with files", timeout=9e3),
    commands=(("$bin/opencode", "run", PROMPT), ("$bin/opencode", "run", "--continue", FURTHER)),
    environment={"OPENCODE_CONFIG": "$home/opencode.json", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    files={"opencode.json": _OPENCODE},
)  # fmt: skip
_PI = """{"providers": {"g": {"baseUrl": "$base/v1", "api": "openai-completions", "apiKey": "none",
  "models": [{"id": "m", "contextWindow": 1000000, "maxTokens": 4096, "reasoning": true}]}}}
"""
PI = Client(
    name="pi", api="chat", packages=("@earendil-works/pi-coding-agent@0.74.2",), script=shell("bash", timeout=9.0),
    commands=tuple(("$bin/pi", *more, "--provider", "g", "--model", "m", "-p", prompt)
                   for more, prompt in (((), PROMPT), (("--continue",), FURTHER))),
    environment={"PI_CODING_AGENT_DIR": "$home", "PI_OFFLINE": "1"}, files={"models.json": _PI},
)  # fmt: skip
QWEN = Client(
    name="qwen-code", api="chat", packages=("@qwen-code/qwen-code@0.15.10",),
    script=shell("run_shell_command", is_background=False, timeout=9e3),
    commands=tuple(("$bin/qwen", *more, "--yolo", "--auth-type", "openai", "-p", prompt)
                   for more, prompt in (((), PROMPT), (("--continue",), FURTHER))),
    environment={**OPENAI, "OPENAI_MODEL": "m"},
)  # fmt: skip

# Each has a window that is full once both files are read, counted in the tokens of tests/gateway_sessions.py.
_CODEX_WINDOW = ("-c", "model_auto_compact_token_limit=30000", *_CODEX)
COMPACTING = [
    replace(CODEX, variant="compaction", script=Compacting(shell("exec_command", "cmd")), commands=(
        ("$bin/codex", "exec", "--sandbox", "danger-full-access", *_CODEX_WINDOW, PROMPT),
        ("$bin/codex", "exec", "--sandbox", "danger-full-access", "resume", "--last", *_CODEX_WINDOW, FURTHER),
    )),
    replace(CLAUDE, variant="compaction", script=Compacting(shell("Bash", description="Works with files")),
            environment={**CLAUDE.environment, "DISABLE_AUTO_COMPACT": "", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                         "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "100000"}),
    replace(OPENCODE, variant="compaction", script=Compacting(shell("bash", description="Works with files")),
            files={"opencode.json": _OPENCODE.replace("1000000", "29000")}),
    replace(PI, variant="compaction", script=Compacting(shell("bash")), files={
        "models.json": _PI.replace("1000000", "8000"),
        "settings.json": '{"compaction": {"enabled": true, "reserveTokens": 2000, "keepRecentTokens": 20}}',
    }),
]  # fmt: skip

_WORK = shell("Bash", description="Works with files"), shell("bash", description="Works with files")
SUB_AGENTS = [
    replace(CLAUDE, variant="sub_agents", script=delegating("Agent", "general-purpose", _WORK[0])),
    replace(OPENCODE, variant="sub_agents", script=delegating("task", "general", _WORK[1])),
]

CLIENTS = [*PROGRAMS, AIDER, MINI, CODEX, CLAUDE, OPENCODE, PI, QWEN, *SUB_AGENTS, *COMPACTING]
