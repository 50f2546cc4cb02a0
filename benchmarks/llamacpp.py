"""llama.cpp as a contender, through its own batches of tokens, and the same weights as a file that it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contenders import Setup, Tokens

CHUNK = 512  # tokens that one call computes at most


class LlamaCpp:
    """A sequence of cache cells for each context, kept across turns, prefixes shared by `seq_cp`.

    `unified` is llama.cpp's `kv_unified`: one buffer for all sequences, where a shared beginning is stored once but
    every token meets every cell; else each sequence has a buffer of its own, and `seq_cp` copies.
    """

    def __init__(self, setup: Setup, file: Path, unified: bool) -> None:
        import llama_cpp

        self.lib: Any = llama_cpp
        self.lib.llama_backend_init()
        self.silence = self.lib.llama_log_callback(lambda *args: None)
        self.lib.llama_log_set(self.silence, ctypes.c_void_p(0))
        options = self.lib.llama_model_default_params()
        options.n_gpu_layers = 0 if setup.device == "cpu" else 999
        self.model = self.lib.llama_model_load_from_file(str(file).encode(), options)
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = setup.batch * setup.max_context, CHUNK, CHUNK
        params.n_seq_max, params.n_threads, params.n_threads_batch = setup.batch, setup.threads, setup.threads
        params.kv_unified = unified
        self.context = self.lib.llama_init_from_model(self.model, params)
        self.memory = self.lib.llama_get_memory(self.context)
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        self.batch = self.lib.llama_batch_init(CHUNK, 0, 1)
        self.rng = np.random.default_rng(0)

    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        return [self._greedy(prompt, count) for prompt in prompts]

    def _greedy(self, prompt: Tokens, count: int) -> Tokens:
        self.lib.llama_memory_clear(self.memory, False)
        fed, said = prompt, []
        for _ in range(count):
            begin = len(prompt) + len(said) - len(fed)
            logits = self._feed([(t, begin + n, 0) for n, t in enumerate(fed)], {len(fed) - 1})
            fed = [int(logits[0].argmax())]
            said += fed
        return said

    def read(self, prompts: Sequence[Tokens]) -> None:
        self.lib.llama_memory_clear(self.memory, False)
        for number, prompt in enumerate(prompts):
            self._draw(self._feed([(t, at, number) for at, t in enumerate(prompt)], {len(prompt) - 1}))

    def prime(self, contexts: Sequence[Tokens]) -> None:
        self.contexts = contexts
        self._store([context[:-1] for context in contexts])

    def choose(self, batch: int) -> None:
        self.prompts = self.contexts[:batch]

    def more(self, count: int) -> None:
        begin, tokens = len(self.prompts[0]) - 1, [prompt[-1] for prompt in self.prompts]
        for at in range(begin, begin + count):
            tokens = self._step(tokens, at)
        for number in range(len(self.prompts)):
            self.lib.llama_memory_seq_rm(self.memory, number, begin, -1)

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        self._store([shared])
        for number in range(1, len(shown)):
            self.lib.llama_memory_seq_cp(self.memory, 0, number, -1, -1)
        at, last = len(shared), [[] for _ in shown]  # the last token said is read with what is shown next
        for turns in zip(*shown, strict=True):
            pieces = [[*said, *turn] for said, turn in zip(last, turns, strict=True)]
            fed = [(t, at + n, number) for number, piece in enumerate(pieces) for n, t in enumerate(piece)]
            ends = set((np.cumsum([len(piece) for piece in pieces]) - 1).tolist())
            tokens = self._draw(self._feed(fed, ends))
            at += len(pieces[0])
            for _ in range(count - 1):
                tokens, at = self._step(tokens, at), at + 1
            last = [[token] for token in tokens]

    def close(self) -> None:
        self.lib.llama_free(self.context)

    def _store(self, contexts: Sequence[Tokens]) -> None:
        self.lib.llama_memory_clear(self.memory, False)
        for number, context in enumerate(contexts):
            self._feed([(t, at, number) for at, t in enumerate(context)], set())

    def _step(self, tokens: Tokens, at: int) -> Tokens:
        fed = [(token, at, number) for number, token in enumerate(tokens)]
        return self._draw(self._feed(fed, set(range(len(tokens)))))

    def _feed(self, fed: Sequence[tuple[int, int, int]], wanted: set[int]) -> np.ndarray:
        """Tokens with their positions and sequences; returns the logits after the wanted ones."""
        rows: list[np.ndarray] = []
        for begin in range(0, len(fed), CHUNK):
            part = fed[begin : begin + CHUNK]
            self.batch.n_tokens = len(part)
            for n, (token, at, number) in enumerate(part):
                self.batch.token[n], self.batch.pos[n] = token, at
                self.batch.n_seq_id[n], self.batch.seq_id[n][0] = 1, number
                self.batch.logits[n] = begin + n in wanted
            if code := self.lib.llama_decode(self.context, self.batch):
                raise RuntimeError(f"llama_decode returned {code}: the cache is too small, or a position is taken")
            for n in range(len(part)):
                if begin + n in wanted:
                    logits = self.lib.llama_get_logits_ith(self.context, n)
                    rows.append(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).copy())
        return np.array(rows)

    def _draw(self, logits: np.ndarray) -> Tokens:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = self.rng.random(len(logits))[:, None] * weights[:, -1:]
        return (weights <= drawn).sum(axis=1).clip(max=self.vocabulary - 1).tolist()


def halves(source: Path, folder: Path) -> dict[str, Path]:
    """GGUF files with the same weights as `source`, dequantized, in fp16 and in bf16."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from gguf.constants import GGMLQuantizationType as Kind
    from gguf.quants import dequantize, quantize

    reader, kinds = GGUFReader(source), {"fp16": Kind.F16, "bf16": Kind.BF16}
    files = {name: folder / f"{name}.gguf" for name in kinds}
    writers = {name: GGUFWriter(file, reader.fields["general.architecture"].contents()) for name, file in files.items()}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        contents = field.contents()
        for writer in writers.values():
            writer.add_key_value(field.name, contents, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for name, writer in writers.items():
            kind = kinds[name] if data.ndim > 1 else Kind.F32
            writer.add_tensor(tensor.name, quantize(data, kind), raw_dtype=kind)
    for writer in writers.values():
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return files
