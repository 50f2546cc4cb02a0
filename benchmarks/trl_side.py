"""TRL's side of `vs_trl.py`: its GRPOTrainer in the world of `keydoor.py`.

    python benchmarks/trl_side.py '{"model": "...", "path": "...", ...}'

An untrained SmolLM2 and a model from scratch make no tool calls, so `environment_factory` and `tools` give a single
turn; `rollout_func` is TRL's way for worlds of one's own. Each turn of all episodes is generated at once by the
trainer's own `_generate_single_turn`, as its tool loop does; the world's answers are appended as tokens and masked by
`env_mask`, so that sampled tokens are trained tokens. `generation` says how:

"whole": transformers' generate on the whole context of each turn, a cache within the turn;
"continuous": the same with `use_transformers_continuous_batching`;
"vllm": TRL's `use_vllm`, colocated, vLLM's engine in the trainer's process with its cache of prefixes (see below);
"kept": generate too, but with a cache that we keep across turns, which TRL has no utility for.

TRL 1.16 asks for vLLM 0.22 to 0.31 and warns at another. vLLM for CPUs packs the weights of each layer as it loads
them, and drops the originals: the first `load_weights` of TRL's `sync_weights` fails there ("'Parameter' object has no
attribute 'weight_loader'"). Here `sync_weights` runs between the two calls by which vLLM itself loads other weights
into such a model. A head that shares its weights with the embedding, which TRL leaves out, is loaded as well, as vLLM
has packed it by itself. TRL leaves the type to vLLM, which takes bf16 where the weights are in fp32: so it does here,
in the cases in fp32 too. TRL's correction for samples of another engine is off, as it takes one more pass of the
trainer.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from keydoor import Clock, KeyDoor, KeyDoors
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, TrainerCallback
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

CONTEXT = 4096  # tokens of a play at most, as vLLM is told
VLLM_MEMORY = 0.25  # of all memory, for vLLM's weights and cache


@dataclass(frozen=True, kw_only=True)
class Work:
    """Holds what both sides are told, and TRL's own choices: `micro` episodes in a training batch, `generation`."""

    model: str
    path: str  # where the clock writes
    world: dict[str, Any]
    max_tokens: int
    groups: int
    size: int
    steps: int
    lr: float
    seed: int = 0
    micro: int
    generation: str = "whole"
    half: bool = False  # products in bf16


@dataclass
class Play:
    """One episode, its tokens and which of them were sampled."""

    world: KeyDoor
    system: str
    tokenizer: Any
    prompt: list[int] = field(init=False)
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.world.observation}]
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        self.prompt = list(encoded["input_ids"])

    def take(self, sampled: list[int]) -> list[int]:
        """The world's answer to what was sampled, as tokens: empty at the end of the play."""
        self.world.say(self.tokenizer.decode(sampled, skip_special_tokens=True))
        answer: list[int] = []
        if self.world.observation is not None:
            ended = sampled[-1] == self.tokenizer.eos_token_id
            turns = f"\n<|im_start|>user\n{self.world.observation}<|im_end|>\n<|im_start|>assistant\n"
            answer = self.tokenizer(("" if ended else "<|im_end|>") + turns, add_special_tokens=False)["input_ids"]
        self.completion += sampled + answer
        self.mask += [1] * len(sampled) + [0] * len(answer)
        return answer


@dataclass
class Rollout:
    """TRL's `rollout_func`: plays the task that each prompt names by its number."""

    work: Work
    figures: dict[str, float] = field(default_factory=dict)  # of the last step

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        began, tokenizer = time.monotonic(), trainer.processing_class
        family = KeyDoors(**self.work.world)
        tasks = family.tasks("train")
        plays = [Play(family.play(tasks[int(prompt[-1]["content"])]), family.system, tokenizer) for prompt in prompts]
        (play_kept if self.work.generation == "kept" else play_whole)(plays, trainer, self.work)
        self.figures = {
            "episodes": len(plays),
            "success": sum(play.world.won for play in plays) / len(plays),
            "sampled_tokens": sum(sum(play.mask) for play in plays),
            "tokens": sum(len(play.prompt) + len(play.completion) for play in plays),
            "seconds_sample": time.monotonic() - began,
        }
        return {
            "prompt_ids": [play.prompt for play in plays],
            "completion_ids": [play.completion for play in plays],
            "env_mask": [play.mask for play in plays],
            "logprobs": None,
            "paid": [play.world.reward for play in plays],
        }


def play_whole(plays: list[Play], trainer: Any, work: Work) -> None:
    while live := [play for play in plays if play.world.observation is not None]:
        contexts = [play.prompt + play.completion for play in live]
        sampled, _ = trainer._generate_single_turn(contexts, None, {}, 1)
        for play, tokens in zip(live, sampled, strict=True):
            play.take(list(tokens))


@torch.no_grad()
def play_kept(plays: list[Play], trainer: Any, work: Work) -> None:
    """Each turn's new tokens are padded to the left, so the rows stay aligned and the attention mask has holes."""
    pad, cache = trainer.processing_class.pad_token_id, DynamicCache()
    tokens, seen = torch.zeros(len(plays), 0, dtype=torch.long), torch.zeros(len(plays), 0, dtype=torch.long)
    news = [play.prompt for play in plays]
    while any(news):
        width = max(map(len, news))
        added = torch.tensor([[pad] * (width - len(new)) + new for new in news])
        there = torch.tensor([[0] * (width - len(new)) + [1] * len(new) for new in news])
        tokens, seen = torch.cat([tokens, added], 1), torch.cat([seen, there], 1)
        before = tokens.shape[1]
        tokens = trainer.model.generate(
            input_ids=tokens,
            attention_mask=seen,
            past_key_values=cache,
            generation_config=trainer.generation_config,
        )
        sampled = [until_end(row, trainer.processing_class.eos_token_id) for row in tokens[:, before:].tolist()]
        mask = [[1] * len(said) + [0] * (tokens.shape[1] - before - len(said)) for said in sampled]
        seen = torch.cat([seen, torch.tensor(mask)], 1)
        news = [
            play.take(said) if play.world.observation is not None else []
            for play, said in zip(plays, sampled, strict=True)
        ]


def until_end(row: list[int], end: int) -> list[int]:
    return row[: row.index(end) + 1] if end in row else row


def paid(prompts: list[Any], completions: list[Any], paid: list[float], **_: Any) -> list[float | None]:
    """The rewards that the worlds gave."""
    return [*paid]


@dataclass
class Ticks(TrainerCallback):
    """Writes the clock at the end of each step."""

    clock: Clock
    rollout: Rollout

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.write(state.global_step, "rl", self.rollout.figures)


def limit(work: Work) -> dict[str, Any]:
    """Returns what bounds a turn, by the name that the one who generates has for it."""
    if work.generation == "vllm":
        return {"max_tokens": work.max_tokens, "detokenize": False}
    return {"max_new_tokens": work.max_tokens}


def config(work: Work, folder: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(folder),
        seed=work.seed,
        max_steps=work.steps,
        num_generations=work.size,
        per_device_train_batch_size=work.micro,
        gradient_accumulation_steps=work.groups * work.size // work.micro,
        shuffle_dataset=False,
        max_completion_length=4096,
        generation_kwargs=limit(work),
        use_vllm=work.generation == "vllm",
        vllm_mode="colocate",
        vllm_max_model_length=CONTEXT,
        vllm_gpu_memory_utilization=VLLM_MEMORY,
        vllm_importance_sampling_correction=False,
        use_transformers_continuous_batching=work.generation == "continuous",
        transformers_continuous_batching_config={"max_memory_percent": 0.03},  # the default takes half of all memory
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        epsilon=0.2,
        loss_type="dapo",  # over the tokens of the step, as Sojourn's "token" aggregate
        scale_rewards="none",
        learning_rate=work.lr,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=work.half,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def train(work: Work) -> None:
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
    rollout = Rollout(work)
    # a row's number is its task: the trainer repeats each row for its group, in order
    rows = [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(work.groups * work.steps)]
    trainer = GRPOTrainer(
        model=model,
        args=config(work, Path(work.path).parent / "trl"),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=paid,
        rollout_func=rollout,
        callbacks=[Ticks(Clock(path=work.path), rollout)],
    )
    if work.generation == "vllm":
        trainer.vllm_generation.sync_weights = partial(sync_weights, trainer.vllm_generation)
    trainer.train()


def sync_weights(generation: VLLMGeneration) -> None:
    """TRL's own `sync_weights`, with what vLLM needs where it has packed the weights of before."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    trained: Any = generation.model
    runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
    initialize_layerwise_reload(runner.model)
    type(generation).sync_weights(generation)
    runner.model.load_weights([("lm_head.weight", trained.get_output_embeddings().weight.data)])
    finalize_layerwise_reload(runner.model, runner.model_config)


if __name__ == "__main__":
    train(Work(**json.loads(sys.argv[1])))
