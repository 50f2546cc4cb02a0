"""The keys of a config that were renamed or removed.

Where a person's config has the old name of a key, the error says the new one; the config that a run folder recorded is
read as if it had been written with the new names, and without the keys that are gone.

A line is `(kind, name, old key): new key`. For a component, the kind and the name are those of the registry, and the
name "*" means every component of the kind that has a registered name. For any other table, the kind is the key of the
table ("optim", "limits", "aggregate", ...; "stages" for a stage; "" for the top level), and the name is "*".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sojourn.config.components import COMPONENTS

ANY = "*"
TOP, STAGES = "", "stages"  # at the top level are also keys for all stages
OLD_KEYS: dict[tuple[str, str, str], str] = {
    ("estimator", "aem", "least"): "min_entropy_range",
    ("estimator", "aepo", "strength"): "entropy_coef",
    ("estimator", "archer", "by"): "stream",
    ("estimator", "cosearch", "least"): "min_similar",
    ("estimator", "cosearch", "gate"): "reward_threshold",
    ("estimator", "cosearch", "by"): "info_key",
    ("estimator", "difficulty", "by"): "task_key",
    ("estimator", "dyna_grpo", "refined"): "info_key",
    ("estimator", "empg", "bonus"): "clarity_coef",
    ("estimator", "foresight", "share"): "execution_coef",
    ("estimator", "gigpo", "deviation"): "scale_by_std",
    ("estimator", "grpo", "deviation"): "scale_by_std",
    ("estimator", "igpo", "pool"): "normalisation",
    ("estimator", "igpo", "malformed"): "malformed_penalty",
    ("estimator", "kl_reward", "form"): "kl_estimator",
    ("estimator", "mars", "over"): "baseline",
    ("estimator", "mgrpo", "main"): "main_agent",
    ("estimator", "mgrpo", "share"): "main_coef",
    ("estimator", "oprl", "by"): "step_advantage",
    ("estimator", "oprl", "strength"): "step_weight",
    ("estimator", "positive", "least"): "min_std",
    ("estimator", "process", "by"): "stream",
    ("estimator", "process", "outcome"): "outcome_coef",
    ("estimator", "srgpo", "by"): "info_key",
    ("estimator", "srgpo", "size"): "step_group_size",
    ("estimator", "stratified", "by"): "info_key",
    ("estimator", "vsc", "by"): "info_key",
    ("estimator", "vsc", "counted"): "cumulative",
    ("estimator", "vsc", "ahead"): "use_next_value",
    ("estimator", "whitened", "by"): "level",
    ("estimator", "whitened", "shift"): "shift_mean",
    ("loss", "bcoder", "advantage"): "advantage_coef",
    ("loss", "bcoder", "likelihood"): "likelihood_coef",
    ("loss", "clip_cov", "share"): "fraction",
    ("loss", "clip_cov", "low"): "min_covariance",
    ("loss", "clip_cov", "high"): "max_covariance",
    ("loss", "kl_cov", "share"): "fraction",
    ("loss", "kl_cov", "penalty"): "kl_coef",
    ("loss", "epo", "low"): "min_ratio",
    ("loss", "epo", "high"): "max_ratio",
    ("loss", "epo", "penalty"): "penalty_coef",
    ("loss", "gspo", "by"): "level",
    ("loss", "importance", "over"): "level",
    ("loss", "importance", "outside"): "mode",
    ("loss", "importance", "low"): "min_weight",
    ("loss", "importance", "high"): "max_weight",
    ("loss", "kl", "form"): "kl_estimator",
    ("loss", "m2po", "bound"): "max_second_moment",
    ("loss", "st_ppo", "by"): "level",
    ("loss", "value", "huber"): "huber_delta",
    ("filter", "roc", "share"): "fraction",
    ("filter", "roc", "by"): "info_key",
    ("reward", "composite", "closed"): "closed_reward",
    ("reward", "composite", "gate"): "gate_key",
    ("reward", "overlong", "most"): "max_tokens",
    ("reward", "overlong", "margin"): "buffer_tokens",
    ("reward", "shaped", "by"): "info_key",
    ("reward", "tool_use", "by"): "info_key",
    ("reward", "tool_use", "failed"): "error_keys",
    ("reward", "tool_use", "repeats"): "penalise_repeats",
    ("reward", "tool_use", "ignore"): "ignored_tools",
    ("reward", "verified", "by"): "info_key",
    ("stream", "curiosity", "width"): "hidden_size",
    ("stream", "curiosity", "actions"): "action_classes",
    ("stream", "feedback", "form"): "reward_model",
    ("stream", "feedback", "rate"): "messages_per_step",
    ("stream", "feedback", "floor"): "min_score",
    ("stream", "feedback", "longest"): "max_chars",
    ("stream", "feedback", "width"): "hidden_size",
    ("stream", "feedback", "batch"): "batch_size",
    ("stream", "feedback", "exponent"): "count_exponent",
    ("stream", "implicit_reward", "against"): "reference_model",
    ("stream", "information_gain", "answer"): "task_key",
    ("stream", "information_gain", "before"): "answer_prefix",
    ("stream", "information_gain", "after"): "answer_suffix",
    ("stream", "information_gain", "form"): "belief",
    ("stream", "milestones", "by"): "info_key",
    ("stream", "milestones", "width"): "hidden_size",
    ("stream", "progress", "width"): "hidden_size",
    ("stream", "relatedness", "width"): "hidden_size",
    ("stream", "utterance_advantage", "follow"): "target_update_rate",
    ("stream", "utterance_advantage", "batch"): "batch_size",
    ("stream", "utterance_advantage", "width"): "hidden_size",
    ("groups", "experts", "distinct"): "distinct_tasks",
    ("groups", "slots", "redraws"): "max_redraws",
    ("curriculum", "shuffle", "tasks"): "max_tasks",
    ("env", "verifiers", "most"): "max_tasks",
    ("env", "*", "brief"): "system",
}
REMOVED = frozenset(  # keys that changed nothing of what a run does, in lines like those above
    {
        ("", "*", "unverified"),
        ("agent", "self_consistency", "reward"),
        ("agent", "sim_rollout", "reward"),
        ("agent", "tree_of_code", "reward"),
    }
)
KIND_OF_KEY = {"filters": "filter", "losses": "loss", "sinks": "sink", "streams": "stream", "worlds": "env"}


def new_key(kind: str, name: str, key: str) -> str:
    """Returns what a key of a table is called today; empty where it was never renamed."""
    owned = kind in COMPONENTS and ":" in name  # somebody's own class, whose keys are not ours
    names = (name,) if owned else (name, ANY)
    kinds = (TOP, STAGES) if kind == TOP else (kind,)
    return next((OLD_KEYS[k, n, key] for k in kinds for n in names if (k, n, key) in OLD_KEYS), "")


def is_removed(kind: str, name: str, key: str) -> bool:
    """Returns whether a table had a key once that changed nothing."""
    return not {(kind, name, key), (kind, ANY, key)}.isdisjoint(REMOVED)


def upgraded(config: Mapping[str, Any], kind: str = TOP) -> dict[str, Any]:
    """Returns a recorded table without removed keys, and with each renamed key under its new name, unless the new name
    is there as well."""
    name = str(config.get("name", ANY))
    config = {key: value for key, value in config.items() if not is_removed(kind, name, key)}
    if kind == "renderer" and name == "auto" and "own_template" not in config:
        config = {**config, "own_template": False}  # a recorded run goes on in the format that it began with
    if kind == "groups" and name == "slots" and config.get("zero_signal") != "redraw":
        config = {key: value for key, value in config.items() if key != "redraws"}  # an older default, without effect
    keys = {key: new_key(kind, name, key) for key in config}
    keys = {key: new if new and new not in config else key for key, new in keys.items()}
    return {new: _upgraded(config[key], new, kind) for key, new in keys.items()}


def _upgraded(value: Any, key: str, outer: str) -> Any:
    """Returns what is under a key of a table of the kind `outer`; a component's own components are of its kind."""
    if isinstance(value, list):
        return [_upgraded(item, key, outer) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = KIND_OF_KEY.get(key, key)
    nested = outer in COMPONENTS and kind not in COMPONENTS and "name" in value
    return upgraded(value, outer if nested else kind)
