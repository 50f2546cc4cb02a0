"""Describes a tokenizer in the fields of a GGUF file, as llama.cpp reads them.

Three kinds are known there: byte-level BPE ("gpt2"), BPE with byte fallback ("llama"), and unigram ("t5").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.errors import ModelError
from sojourn.render.pieces import byte_letters

SPACE = "\u2581"  # how "llama" and "t5" write a space
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp knows the ways in which tokenizers cut a text into words by names; these are named after the first user.
SPLITS = {LETTERS + r"\p{N}" + REST: "qwen2", LETTERS + r"\p{N}{1,3}" + REST: "llama-bpe"}
NORMAL, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = range(1, 7)  # the types of tokens


def add_tokenizer(writer: Any, tokenizer: Any, size: int, stops: Sequence[int]) -> None:
    """Adds the tokenizer to a `gguf.GGUFWriter`. The model has `size` embeddings; `stops` end a turn, the first
    that of a text."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    model, types = data["model"], _types(data, size)
    tokens = _tokens(model, data["added_tokens"], size)
    byte_level = "ByteLevel" in json.dumps(data["pre_tokenizer"])
    match model["type"]:
        case "BPE" if byte_level:
            kind = "gpt2"
            writer.add_tokenizer_pre(_split_name(data["pre_tokenizer"]))
            writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
        case "BPE" if model.get("byte_fallback"):
            kind = "llama"
            writer.add_tokenizer_pre("default")
            writer.add_token_scores(_merge_scores(tokens, model["merges"]))
            types = [BYTE if _is_byte(token) else type_ for token, type_ in zip(tokens, types, strict=True)]
        case "Unigram":
            kind = "t5"
            scores = dict(model["vocab"])
            writer.add_token_scores([float(scores.get(token, 0.0)) for token in tokens])
            writer.add_remove_extra_whitespaces(False)
            tokens = [_as_text(t) if type_ == NORMAL else t for t, type_ in zip(tokens, types, strict=True)]
        case other:
            raise ModelError(f"a tokenizer of the kind {other} cannot be written as GGUF: export the model as hf")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_add_space_prefix(False)
    _add_special(writer, tokenizer, stops)


def _add_special(writer: Any, tokenizer: Any, stops: Sequence[int]) -> None:
    """Adds the special tokens, which of them are put around every text, and the chat template."""
    around = (
        tokenizer.build_inputs_with_special_tokens([]) if hasattr(tokenizer, "build_inputs_with_special_tokens") else []
    )
    around = around or tokenizer("").input_ids
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and tokenizer.bos_token_id in around)
    writer.add_add_eos_token(False)
    ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)  # llama.cpp ends at each
    for add, token in (
        *zip(ends, stops or [tokenizer.eos_token_id], strict=False),
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if token is not None:
            add(token)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _tokens(model: Mapping[str, Any], added: list[dict[str, Any]], size: int) -> list[str]:
    """Returns the text of every token, with names for embeddings that no token has."""
    tokens = [f"[PAD{number}]" for number in range(size)]
    vocabulary = model["vocab"]
    known = vocabulary.items() if isinstance(vocabulary, dict) else ((t, n) for n, (t, _) in enumerate(vocabulary))
    for token, number in known:
        tokens[number] = token
    for token in added:
        tokens[token["id"]] = token["content"]
    return tokens


def _types(data: Mapping[str, Any], size: int) -> list[int]:
    vocabulary = data["model"]["vocab"]
    used = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
    types = [NORMAL if number in used else UNUSED for number in range(size)]
    for token in data["added_tokens"]:
        types[token["id"]] = CONTROL if token["special"] else ADDED
    return types


def _split_name(pre_tokenizer: Mapping[str, Any]) -> str:
    """Returns llama.cpp's name for how a byte-level tokenizer cuts a text into words. Raises `ModelError` for a way
    that it has no name for here."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if names == ["Digits", "ByteLevel"] and steps[0]["individual_digits"] and steps[1]["use_regex"]:
        return "smollm"
    if names == ["Split", "ByteLevel"] and (found := SPLITS.get(steps[0]["pattern"].get("Regex", ""))):
        return found
    raise ModelError(
        "this tokenizer cuts texts into words in a way for which llama.cpp's name is not known here "
        f"({', '.join(names)}): export the model as hf"
    )


def _merge_scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """Returns a score for each token, by which llama.cpp merges in the order of `merges`."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        whole = pair.replace(" ", "", 1) if isinstance(pair, str) else "".join(pair)
        ranks.setdefault(whole, rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _as_text(token: str) -> str:
    """Returns a token of a byte-level unigram model as text. Bytes beyond ASCII, which "t5" has no notion of, become
    names that occur in no text."""
    data = bytes(byte_letters()[letter] for letter in token)
    if any(byte > 127 for byte in data):
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return data.decode().replace(" ", SPACE)
