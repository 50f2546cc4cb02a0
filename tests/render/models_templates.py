"""Chat templates to test on: those of real models, from the package trl where it is installed, and some of our own with
the structure of models whose templates it does not have."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from sojourn.backends.torch.models import tiny

CONTROLS = r"<\|[^|<>]*?\|>|<｜[^｜]*?｜>|<(?:start|end)_of_\w+>|</?think>|</?tool_\w+>|\[/?[A-Z_]{3,}\]"
BOS_EOS = {  # of models whose template writes them by name
    "qwen2_5": ("", "<|im_end|>"),
    "qwen3": ("", "<|im_end|>"),
    "qwen3_instruct_2507": ("", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3_1": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3_2": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<eos>"),
    "gemma3": ("<bos>", "<eos>"),
    "phi3": ("<s>", "<|endoftext|>"),
    "phi3_5": ("<s>", "<|endoftext|>"),
    "deepseekv3": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek_r1_distill": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gptoss": ("<|startoftext|>", "<|return|>"),
    "glm4moe": ("", "<|endoftext|>"),
}
# Like Qwen3: thinking can be switched off, by an empty thought in the prompt, and earlier thoughts are removed.
HYBRID = """
{%- if messages[0].role == 'system' or tools %}{{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- for tool in tools or [] %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set seen = namespace(question=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set seen.question = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content or '' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > seen.question and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {%- if m.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
# Like Mistral's: tools and the system message go with the last user message, calls have ids of nine characters.
MISTRAL = """
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- set rest = messages[1:] if system else messages %}
{%- set seen = namespace(last=0, turn='user') %}
{%- for m in rest %}
    {%- if m.role == 'user' %}{%- set seen.last = loop.index0 %}{%- endif %}
    {%- if m.role != 'tool' and not m.tool_calls %}
        {%- if m.role != seen.turn %}{{- raise_exception('user and assistant must take turns') }}{%- endif %}
        {%- set seen.turn = 'assistant' if m.role == 'user' else 'user' %}
    {%- endif %}
{%- endfor %}
{{- '<s>' }}
{%- for m in rest %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.index0 == seen.last %}
            {{- '[AVAILABLE_TOOLS]' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + (system if loop.index0 == seen.last else '') + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('an id has nine characters') }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
            {{- ', "id": "' + call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ']</s>' }}
    {%- elif m.role == 'assistant' %}{{- m.content + '</s>' }}
    {%- else %}
        {{- '[TOOL_RESULTS]{"content": ' }}{{- m.content | tojson }}
        {{- ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
# Like SmolLM3: a header with the date and the mode of thinking, which stays in the history as an empty thought.
SMOLLM3 = """
{%- set mode = '/think' if enable_thinking else '/no_think' %}
{{- '<|im_start|>system\\nToday: ' + strftime_now('%d %B %Y') + '\\nMode: ' + mode + '\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
{%- for tool in tools or [] %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '<tool_call>' }}{{- call.function | tojson }}{{- '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role != 'system' %}
        {{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
OWN = {"hybrid": HYBRID, "mistral": MISTRAL, "smollm3": SMOLLM3}
OWN_BOS_EOS = {"hybrid": ("", "<|im_end|>"), "mistral": ("<s>", "</s>"), "smollm3": ("", "<|im_end|>")}


def with_template(name):
    """Returns the tokenizer of `tiny` with the template of a model, and its control tokens; skips where trl has it and
    is not installed."""
    template = OWN.get(name) or _real(name)
    bos, eos = (BOS_EOS | OWN_BOS_EOS)[name]
    tokenizer = tiny.build_tokenizer()
    controls = sorted({*re.findall(CONTROLS, template), *filter(None, (bos, eos))})
    tokenizer.add_special_tokens({"additional_special_tokens": controls})
    tokenizer.add_special_tokens({k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v})
    tokenizer.chat_template = template
    return tokenizer


def _real(name):
    found = find_spec("trl")  # imports nothing of it
    if found is None:
        pytest.skip("needs the templates of trl: pip install --no-deps -r tests/render/requirements.txt")
    [folder] = found.submodule_search_locations
    return (Path(folder) / "chat_templates" / f"{name}.jinja").read_text()
