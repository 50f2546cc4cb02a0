"""Agents of the command line that many use: how each is started, and finds its model and the world's tools.

Their settings switch questions, updates, sandboxes and compaction of their own off: a program that is trained asks
nobody, and runs in ours. Below the folder of an episode they keep what they need in `.agent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

PresetName = Literal["", "claude", "codex", "mini", "opencode", "pi"]
WINDOW = 1_000_000  # tokens of context that an agent is told of, so that it drops nothing by itself
HOME = {"HOME": "{folder}"}
NPM = "npm install -g"


class Started(NamedTuple):
    """Holds how a program is started, with placeholders."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    files: Mapping[str, str]

    def mentions(self, placeholder: str) -> bool:
        """Returns whether the command, the variables or the files have a placeholder."""
        return any(placeholder in text for text in (*self.command, *self.variables.values(), *self.files.values()))


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Describes an agent of the command line. Its `arguments` follow the name of the `program`, then come the user's,
    then `prompt`. `install` is the command that installs it."""

    program: str
    install: str
    arguments: tuple[str, ...] = ()
    prompt: tuple[str, ...]
    variables: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    def started(self, command: tuple[str, ...], variables: Mapping[str, str], files: Mapping[str, str]) -> Started:
        """Returns how it is started with the user's settings, which go before its own: the name or path of its program
        and further arguments, variables, and files."""
        program, *more = command or (self.program,)
        whole = (program, *self.arguments, *more, *self.prompt)
        return Started(whole, {**HOME, **self.variables, **variables}, {**self.files, **files})


CLAUDE = Preset(
    program="claude",
    install=f"{NPM} @anthropic-ai/claude-code",
    arguments=(
        "--dangerously-skip-permissions", "--strict-mcp-config",
        "--mcp-config", '{"mcpServers": {"world": {"type": "http", "url": "{mcp_url}"}}}',
    ),
    prompt=("-p", "--", "{task}"),
    variables={
        "ANTHROPIC_MODEL": "{model}", "ANTHROPIC_SMALL_FAST_MODEL": "{model}", "IS_SANDBOX": "1",
        "DISABLE_AUTO_COMPACT": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    },
)  # fmt: skip
CODEX = Preset(
    program="codex",
    install=f"{NPM} @openai/codex",
    arguments=("exec", "--sandbox", "danger-full-access", "--skip-git-repo-check"),
    prompt=("--", "{task}"),
    variables={"CODEX_HOME": "{folder}/.agent"},
    files={
        ".agent/config.toml": f"""model = "{{model}}"
model_provider = "sojourn"
model_context_window = {WINDOW}
web_search = "disabled"

[model_providers.sojourn]
name = "sojourn"
base_url = "{{base_url}}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[mcp_servers.world]
url = "{{mcp_url}}"
"""
    },
)
MINI = Preset(
    program="mini",
    install="pip install mini-swe-agent",
    arguments=("-y", "--exit-immediately", "-m", "openai/{model}", "-o", "{folder}/.agent/run.json"),
    prompt=("--task={task}",),
    variables={
        "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": "{folder}/.agent", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
)  # fmt: skip
OPENCODE = Preset(
    program="opencode",
    install=f"{NPM} opencode-ai",
    arguments=("run",),
    prompt=("--", "{task}"),
    variables={"OPENCODE_CONFIG": "{folder}/.agent/opencode.json", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    files={
        ".agent/opencode.json": f"""{{
  "provider": {{"sojourn": {{"npm": "@ai-sdk/openai-compatible",
    "options": {{"baseURL": "{{base_url}}", "apiKey": "{{key}}"}},
    "models": {{"{{model}}": {{"name": "{{model}}", "tool_call": true,
      "limit": {{"context": {WINDOW}, "output": 4096}}}}}}}}}},
  "model": "sojourn/{{model}}", "autoupdate": false, "share": "disabled", "permission": {{"bash": "allow"}},
  "mcp": {{"world": {{"type": "remote", "url": "{{mcp_url}}", "enabled": true}}}}
}}
"""
    },
)
PI = Preset(
    program="pi",
    install=f"{NPM} @earendil-works/pi-coding-agent",
    arguments=("--provider", "sojourn", "--model", "{model}"),
    prompt=("-p", "{task}"),
    variables={"PI_CODING_AGENT_DIR": "{folder}/.agent", "PI_OFFLINE": "1"},
    files={
        ".agent/models.json": f"""{{"providers": {{"sojourn": {{"baseUrl": "{{base_url}}",
  "api": "openai-completions", "apiKey": "{{key}}",
  "models": [{{"id": "{{model}}", "contextWindow": {WINDOW}, "maxTokens": 4096}}]}}}}}}
"""
    },
)
PRESETS: Mapping[str, Preset] = {"claude": CLAUDE, "codex": CODEX, "mini": MINI, "opencode": OPENCODE, "pi": PI}
