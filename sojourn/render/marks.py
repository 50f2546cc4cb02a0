"""The markers of a chat format whose turns stand between markers, and the format as a chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sojourn.render import hermes
from sojourn.types import Role

TEMPLATE = """
{%- set names = NAMES %}{%- set merged = MERGED %}
{%- if tools and (not messages or messages[0].role != 'system') %}
    {%- set messages = [{'role': 'system', 'content': ''}] + messages %}
{%- endif %}
{{- BEGINNING }}
{%- for m in messages %}
    {%- set text = m.content or '' %}
    {%- if not loop.first and m.role in merged and messages[loop.index0 - 1].role in merged %}{{- BETWEEN }}
    {%- else %}{{- START + names[m.role] + '\\n' }}
    {%- endif %}
    {%- if m.role == 'assistant' %}
        {%- if THINKING %}{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- text }}
        {%- for call in m.tool_calls or [] %}
            {%- set said = call.function.arguments %}
            {{- ('\\n' if text or not loop.first else '') + '<tool_call>\\n{"name": ' }}
            {{- call.function.name | tojson }}
            {{- ', "arguments": ' }}{{- said if said is string else said | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}{{- '<tool_response>\\n' + text + '\\n</tool_response>' }}
    {%- else %}{{- text }}
    {%- endif %}
    {%- if tools and loop.first %}
        {{- ('\\n\\n' if text else '') + DECLARATION }}
        {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
        {{- USAGE }}
    {%- endif %}
    {%- if loop.last or m.role not in merged or messages[loop.index0 + 1].role not in merged %}{{- END + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- START + names['assistant'] + '\\n' + ('<think>\\n' if THINKING else '') }}
{%- endif %}"""


@dataclass(frozen=True)
class Marks:
    """The markers of a format. `names` maps a role to its name in the header; consecutive messages of `merged` roles
    share a turn, separated by `between`."""

    beginning: str  # of every conversation
    start: str  # of a turn: then its name and a newline
    end: str  # of a turn: one token
    names: dict[Role, str]
    merged: tuple[Role, ...]
    between: str

    def chat_template(self, thinking: bool) -> str:
        """Returns a Jinja program that writes what `turns.Turns` writes, tools and calls included, for programs that
        render by one."""
        values: dict[str, Any] = {
            "NAMES": {str(role): name for role, name in self.names.items()},
            "MERGED": [str(role) for role in self.merged],
            "BEGINNING": self.beginning,
            "BETWEEN": self.between,
            "START": self.start,
            "END": self.end,
            "THINKING": thinking,
            "DECLARATION": hermes.DECLARATION,
            "USAGE": hermes.USAGE,
        }
        template = TEMPLATE.lstrip()
        for name, value in values.items():
            template = template.replace(name, json.dumps(value))
        return template
