"""A GGUF file of a Llama of a few thousand weights, with a byte-level tokenizer, written in a moment."""

from pathlib import Path

import numpy as np

HIDDEN, LAYERS, CONTEXT = 32, 2, 128


def write(path: Path, template: str = "{{ messages[0].content }}", seed: int = 0) -> None:
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ab"]
    kinds = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * 257
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(template)
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))

    weight("token_embd", len(tokens), HIDDEN)
    weight("output_norm", HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            weight(f"blk.{layer}.{name}", HIDDEN)
        for name, size in (("attn_q", HIDDEN), ("attn_k", 16), ("attn_v", 16), ("attn_output", HIDDEN)):
            weight(f"blk.{layer}.{name}", size, HIDDEN)
        for name, shape in (("ffn_gate", (64, HIDDEN)), ("ffn_up", (64, HIDDEN)), ("ffn_down", (HIDDEN, 64))):
            weight(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
