"""Builds a small language model and its tokenizer of whole words; it learns a text world in minutes on one core.

The tokenizer is a unigram model (Kudo 2018, arXiv:1804.10959) whose vocabulary is written here, not learned: the 256
bytes, so that any text round-trips, and the words below, each at the start of a line and after a space. A listed word
is always one token, since each token costs about the same; other words are split into shorter ones and bytes.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from sojourn.backends.torch.models.deferred import Deferred
    from sojourn.backends.torch.models.stored import StoredTensor

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Both "room" and " room" are tokens; single letters and digits are there as bytes.
WORDS = """
system user assistant tool name arguments
a about act action actions after all already an and answer any are as at back be before bottom but by can cannot
carry choose do does down each else end enter error false find first for from get give go goal guess has have
help here high higher if in into is it its last left like list look low lower made make many may me more move much
must my need new next no none not nothing now number of off on one only open or other out over pick play press put
read reward right run same say score search see select set show shut so start state step steps stop take text than that
the them then there they this time to top true try turn two type under up use value wait want was way ways what when
where which will win with word words work write wrong yes you your click drop close wear unlock locked opens
north south east west northeast northwest inside outside
attic bakery bathroom bedroom cave cellar chapel closet corridor forge garden hall kitchen library lobby office
orchard pantry path porch room rooms school stable street studio study temple tower wall window workshop
black blue brown gray green orange pink purple red white yellow colour
apple ball bed book bottle bowl box bread candle chest coin cup desk door doors floor food gold hammer
item items key keys lamp light lock map mirror rope spoon stone sword table thing treasure water
button check email field form link menu option page password price product submit tab
zero three four five six seven eight nine ten
""".split()  # noqa: SIM905

# Only what sentences often begin with, so that the vocabulary stays small.
OPENINGS = """
A An And Answer Go Here I If In It No Now Open Say Shut Take That The There They This To Ways What Yes You Your
""".split()  # noqa: SIM905
CONTEXT = 4096  # tokens
HEAD = 32  # the size of an attention head


@dataclass(frozen=True)
class Size:
    """The options of the name: `tiny:layers=4,hidden=128`. `context` is the longest sequence, in tokens."""

    layers: int = 4
    hidden: int = 128
    context: int = CONTEXT

    def __post_init__(self) -> None:
        if self.layers < 1 or self.hidden < 2 * HEAD or self.hidden % (2 * HEAD) or self.context < 16:
            raise ModelError(
                f"tiny:layers={self.layers},hidden={self.hidden},context={self.context} cannot be built: expected at "
                f"least 1 layer, hidden a multiple of {2 * HEAD}, and context of at least 16"
            )


def read_size(name: str) -> Size:
    """Returns the size for a name such as "tiny" or "tiny:layers=2,hidden=64"."""
    _, _, options = name.partition(":")
    values: dict[str, int] = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in Size.__dataclass_fields__ or not value.isascii() or not value.isdigit():
            raise ModelError(
                f"model '{name}': cannot read '{option}': expected layers, hidden or context and a whole number, "
                "such as tiny:layers=4,hidden=128"
            )
        values[key] = int(value)
    return Size(**values)


def build_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = pre_tokenizers.ByteLevel.alphabet()
    space = "\u0120"  # how byte-level tokenizers write a space
    whole = [*WORDS, *OPENINGS]
    pieces = [*(space + c for c in string.digits), *(space + word for word in whole), *whole]
    vocabulary = [(token, 0.0) for token in SPECIAL]
    vocabulary += [(byte, -12.0) for byte in sorted(letters)]
    vocabulary += [(piece, -10.0) for piece in dict.fromkeys(pieces) if len(piece) > 1]
    tokenizer = Tokenizer(models.Unigram(vocabulary, None, False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(size: Size, tokenizer: Any, seed: int) -> Any:
    """Builds a Llama-style decoder (Touvron et al. 2023, arXiv:2302.13971) with grouped queries and tied embeddings.

    Initial weights have a standard deviation of 1/sqrt(hidden), smaller by sqrt(2 layers) for those that write to the
    residual stream (Radford et al. 2019): at Llama's own 0.02, a model this narrow does not learn to copy within
    minutes (`LOG.md`).
    """
    from sojourn.backends.torch.models import deferred

    return deferred.filled(defer_model(size, tokenizer, seed))


def defer_model(size: Size, tokenizer: Any, seed: int) -> Deferred:
    """Returns the model that `build_model` builds, without its weights."""
    from transformers import LlamaForCausalLM

    from sojourn.backends.torch.models import deferred

    config = model_config(size, tokenizer)
    model = deferred.outline(lambda: LlamaForCausalLM(config))
    return deferred.Deferred(model, lambda: _initial(size, model, config, seed))


def model_config(size: Size, tokenizer: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // HEAD,
        num_key_value_heads=size.hidden // HEAD // 2,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=size.hidden**-0.5,
    )


def _initial(size: Size, model: Any, config: Any, seed: int) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the initial weights, each drawn as it is read. Those that torch's modules draw first are drawn and
    dropped, as is done where transformers itself builds the model, whose weights these are."""
    import torch

    from sojourn.backends.torch.models import deferred
    from sojourn.backends.torch.models.stored import StoredTensor

    shapes = {name: tuple(tensor.shape) for name, tensor in deferred.tensors_of(model).items()}
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, first: int, last: int) -> Any:
        if len(shapes[name]) == 1:
            return torch.ones(last - first)
        weight = torch.empty(shapes[name]).normal_(0.0, config.initializer_range, generator=generator)
        if name.endswith("embed_tokens.weight"):
            weight[config.pad_token_id] = 0
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight /= (2 * size.layers) ** 0.5
        return weight[first:last]

    for name, shape in shapes.items():
        if name.endswith("embed_tokens.weight"):
            torch.empty(shape).normal_(generator=generator)
        elif len(shape) == 2:
            torch.empty(shape).uniform_(generator=generator)
    for name, shape in shapes.items():
        yield name, StoredTensor(shape, partial(draw, name))
