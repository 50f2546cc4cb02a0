"""What comes with Sojourn: one line for each component, by kind and name. Importing this imports none of them."""

from __future__ import annotations

COMPONENTS: dict[str, dict[str, str]] = {
    "env": {
        "toy": "sojourn.envs.toy:Toy",
        "miniwob": "sojourn.envs.miniwob:MiniWoB",
        "shop": "sojourn.envs.shop:Shop",
        "tools": "sojourn.envs.tools:Tools",
    },
    "renderer": {
        "auto": "sojourn.render.auto:Auto",
        "chatml": "sojourn.render.chatml:ChatML",
        "gemma": "sojourn.render.gemma:Gemma",
        "template": "sojourn.render.template:Template",
    },
    "agent": {"plain": "sojourn.agents.plain:Plain"},
    "reward": {
        "native": "sojourn.rewards.native:Native",
        "composite": "sojourn.rewards.composite:Composite",
        "shaped": "sojourn.rewards.shaped:Shaped",
        "overlong": "sojourn.rewards.overlong:Overlong",
    },
    "curriculum": {"cycle": "sojourn.tasks.cycle:Cycle", "shuffle": "sojourn.tasks.shuffle:Shuffle"},
    "groups": {
        "slots": "sojourn.rollout.slots:Slots",
        "experts": "sojourn.rollout.experts:Experts",
        "folder": "sojourn.rollout.folder:Folder",
    },
    "filter": {"roc": "sojourn.filters.roc:ROC"},
    "estimator": {
        "grpo": "sojourn.credit.grpo:GRPO",
        "rloo": "sojourn.credit.rloo:RLOO",
        "opo": "sojourn.credit.opo:OPO",
        "gigpo": "sojourn.credit.gigpo:GiGPO",
        "stratified": "sojourn.credit.stratified:Stratified",
        "srgpo": "sojourn.credit.srgpo:SRGPO",
        "eapo": "sojourn.credit.eapo:EAPO",
        "mgrpo": "sojourn.credit.mgrpo:MGRPO",
        "mars": "sojourn.credit.mars:MARS",
        "cosearch": "sojourn.credit.cosearch:CoSearch",
        "rae": "sojourn.credit.rae:RAE",
        "reinforce_pp": "sojourn.credit.reinforce_pp:ReinforcePP",
        "difficulty": "sojourn.credit.difficulty:Difficulty",
        "empg": "sojourn.credit.empg:EMPG",
        "aem": "sojourn.credit.aem:AEM",
        "aepo": "sojourn.credit.aepo:AEPO",
        "kl_reward": "sojourn.credit.kl_reward:KLReward",
        "whitened": "sojourn.credit.whitened:Whitened",
        "reinforce": "sojourn.credit.reinforce:Reinforce",
        "constant": "sojourn.credit.constant:Constant",
    },
    "loss": {
        "ppo": "sojourn.losses.ppo:PPO",
        "cispo": "sojourn.losses.cispo:CISPO",
        "gspo": "sojourn.losses.gspo:GSPO",
        "sapo": "sojourn.losses.sapo:SAPO",
        "clip_cov": "sojourn.losses.clip_cov:ClipCov",
        "kl_cov": "sojourn.losses.kl_cov:KLCov",
        "aepo": "sojourn.losses.aepo:AEPO",
        "m2po": "sojourn.losses.m2po:M2PO",
        "importance": "sojourn.losses.importance:Importance",
        "reinforce": "sojourn.losses.reinforce:Reinforce",
        "kl": "sojourn.losses.kl:KL",
        "entropy": "sojourn.losses.entropy:Entropy",
        "epo": "sojourn.losses.epo:EPO",
        "nll": "sojourn.losses.nll:NLL",
    },
    "stream": {
        "entropy": "sojourn.streams.entropy:Entropy",
        "policy_logprobs": "sojourn.streams.policy_logprobs:PolicyLogprobs",
        "ref_logprobs": "sojourn.streams.ref_logprobs:RefLogprobs",
    },
    "backend": {"torch": "sojourn.backends.torch.backend:Torch"},
    "schedule": {
        "constant": "sojourn.schedules:Constant",
        "linear": "sojourn.schedules:Linear",
        "cosine": "sojourn.schedules:Cosine",
    },
    "sink": {
        "tensorboard": "sojourn.record.metrics:TensorBoard",
        "wandb": "sojourn.record.metrics:Wandb",
        "trackio": "sojourn.record.metrics:Trackio",
    },
}


# What a component of a kind has, methods with brackets; "no x" tells it from another kind, "x or y" wants either.
MEMBERS: dict[str, tuple[str, ...]] = {
    "env": ("tasks(...)", "make(...)"),
    "renderer": ("bind(...) or pick(...)",),
    "agent": ("seat(...)",),
    "reward": ("__call__(...)", "no needs", "no provides"),
    "curriculum": ("split", "bind(...)"),
    "groups": ("width", "live", "tasks(...)", "bind(...)"),
    "filter": ("__call__(...)", "no needs", "no provides"),
    "estimator": ("needs", "__call__(...)", "no proportional"),
    "loss": ("needs", "proportional", "__call__(...)"),
    "stream": ("provides", "reference", "__call__(...)"),
    "backend": ("check(...)", "open(...)"),
    "schedule": ("__call__(...)", "no needs", "no provides"),
    "sink": ("__call__(...)", "no needs", "no provides"),
}
