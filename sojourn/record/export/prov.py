"""W3C PROV of recorded episodes, as PROV-JSON (Huynh et al. 2013, W3C Member Submission SUBM-prov-json-20130424).

The entities of a run are its config, code, model, weights by version, world, tasks and reward. Those of an episode are
its record and scores, and for every turn the prompt and the sample, each by the SHA-256 of its tokens (int64,
little-endian). What a resume changed of the config is an entity of its own, from which the config was derived.
Activities are the run, its resumes, the play of an episode, each sampling, and the judging; agents are the policy or
the world's expert, the judge, and Sojourn. What a run did not record is left out: only the duration of an episode is
known, not its time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from sojourn.codec import to_json
from sojourn.record import checkpoint, metrics
from sojourn.record.changes import recorded_changes
from sojourn.record.export.json_lines import to_line
from sojourn.record.export.selection import PlayedEpisode, SelectedEpisodes
from sojourn.record.source import digest_of
from sojourn.types import IntArray, Trajectory

UNIT = "statement"
SUFFIX = ".prov.json"  # of the names of its files
VOCABULARY = "urn:sojourn:provenance#"
SECTIONS = (
    "entity", "activity", "agent", "used", "wasGeneratedBy", "wasAssociatedWith", "wasAttributedTo", "wasDerivedFrom",
    "wasInformedBy", "actedOnBehalfOf",
)  # fmt: skip
POLICY, EXPERT, JUDGE, SOJOURN, RUN = "policy", "expert", "judge", "sojourn", "training"


def write(path: Path, selected: SelectedEpisodes) -> int:
    """Writes each section to a file of its own first, since PROV-JSON has one object for each kind of statement."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder, ExitStack() as stack:
        files = {name: stack.enter_context(open(os.path.join(folder, name), "w+")) for name in SECTIONS}
        document = _Document(selected, files)
        document.run()
        for played in selected:
            document.episode(played)
        _join(path, files, {"sojourn": VOCABULARY, "run": document.namespace})
        return document.count


def _join(path: Path, files: Mapping[str, IO[str]], prefixes: Mapping[str, str]) -> None:
    with path.open("w", encoding="ascii") as out:
        out.write('{"prefix": ' + json.dumps(prefixes))
        for name, file in files.items():
            if file.tell():
                file.seek(0)
                out.write(f',\n"{name}": {{\n')
                for number, line in enumerate(file):
                    out.write(f"{',' if number else ''}{line}")
                out.write("}")
        out.write("}\n")


class Weights(NamedTuple):
    """The step that ended with a version of the weights, and the checkpoint that has it, if there is one."""

    stage: str = ""
    step: int = -1
    checkpoint: Path | None = None


@dataclass
class _Document:
    selected: SelectedEpisodes
    files: Mapping[str, IO[str]]
    count: int = 0
    _known: set[str] = field(default_factory=set)

    @property
    def namespace(self) -> str:
        return f"urn:sojourn:run:{_local(self.selected.name)}:{self.selected.config_digest}#"

    @cached_property
    def weights(self) -> dict[int, Weights]:
        return _weights(self.selected)

    def run(self) -> None:
        """Writes what all episodes share."""
        config, versions = self.selected.config, self.selected.versions
        world = config.get("env", {})
        seeds = self.selected.run.seeds
        self.entity("config", "Configuration", {"sha256": self.selected.config_digest, "file": "config.toml"})
        code = {"version": versions.get("sojourn"), "sha256": versions.get("source"), "commit": versions.get("commit")}
        self.entity("code", "Code", code | {"packages": _json(versions)})
        self.entity(
            "model",
            "Model",
            {
                **_fields(config.get("model")),
                "seed": seeds.get("run", config.get("seed")),
                "weights": self.selected.run.models.get("policy"),
            },
        )
        self.entity("world", "World", {"name": world.get("name"), "fields": _json(world)})
        self.entity("reward", "Reward", _fields(config.get("reward")))
        self.entity(
            "scaffold", "Scaffold", {"agent": _json(config.get("agent")), "sampling": _json(config.get("sampling"))}
        )
        self.agent(SOJOURN, {"version": versions.get("sojourn")})
        for name in (POLICY, JUDGE):
            self.agent(name, {})
            self.relate("actedOnBehalfOf", delegate=name, responsible=SOJOURN)
        began = versions.get("began")
        self.write("activity", RUN, {"prov:type": _type("Run"), **({"prov:startTime": began} if began else {})})
        for name in ("config", "code", "model", "world", "reward"):
            self.relate("used", activity=RUN, entity=name)
        self.relate("wasAssociatedWith", activity=RUN, agent=SOJOURN, plan="config")
        self._changes()

    def _changes(self) -> None:
        """Writes what was changed of the config whenever the run was resumed with another one."""
        for number, resumed in enumerate(recorded_changes(self.selected.run)):
            resume, changes = f"resume/{number}", f"changes/{number}"
            self.write("activity", resume, {"prov:type": _type("Resume"), "prov:startTime": resumed.time})
            facts = {"stage": resumed.stage, "step": resumed.step}
            self.entity(changes, "Changes", {**facts, "changes": _json([c.masked._asdict() for c in resumed.changes])})
            self.relate("wasGeneratedBy", entity=changes, activity=resume)
            self.relate("wasDerivedFrom", generatedEntity="config", usedEntity=changes)
            self.relate("used", activity=RUN, entity=changes)
            self.relate("wasInformedBy", informed=RUN, informant=resume)

    def episode(self, played: PlayedEpisode) -> None:
        entry, episode = played.entry, played.record.episode
        name = f"{_local(entry.stage)}/{entry.step}/{_local(episode.id)}"
        self._task(played)
        facts = {"episode": episode.id, "stage": entry.stage, "step": entry.step, "slot": entry.slot}
        outcome = {"reward": entry.reward, "success": entry.success, "ending": entry.ending, "error": episode.error}
        self.entity(f"episode/{name}", "Episode", facts | outcome | {"seconds": episode.seconds})
        self.write(
            "activity", f"play/{name}", {"prov:type": _type("Play"), "sojourn:seconds": _number(episode.seconds)}
        )
        self.relate("wasInformedBy", informed=f"play/{name}", informant=RUN)
        for used in (f"task/{episode.task.id}", "world", "config", "code"):
            self.relate("used", activity=f"play/{name}", entity=used)
        self.relate("wasGeneratedBy", entity=f"episode/{name}", activity=f"play/{name}")
        actors = set()
        for seat, trajectory in enumerate(episode.trajectories):
            actors |= self._trajectory(f"{name}/{seat}", f"play/{name}", trajectory)
        for actor in sorted(actors):
            self.relate("wasAssociatedWith", activity=f"play/{name}", agent=actor, plan="scaffold")
            self.relate("wasAttributedTo", entity=f"episode/{name}", agent=actor)
        self._scores(name, played)

    def _task(self, played: PlayedEpisode) -> None:
        task = played.record.episode.task
        facts = {"env": task.env, "seed": str(task.seed), "split": task.split, "tags": ", ".join(task.tags)}
        name = f"task/{task.id}"
        if self.entity(name, "Task", {**facts, "data": _json(dict(task.data))}):
            self.relate("wasDerivedFrom", generatedEntity=name, usedEntity="world")

    def _trajectory(self, name: str, play: str, trajectory: Trajectory) -> set[str]:
        """Writes the prompts and samples of a seat; returns the agents that acted in it."""
        actors = set()
        for number, turn in enumerate(trajectory.turns):
            place, sample = f"{name}/{number}", turn.sample
            actor = POLICY if sample.versions.oldest >= 0 else EXPERT
            actors.add(actor)
            if actor == EXPERT:
                self.agent(EXPERT, {})
            prompt = trajectory.prompt(number)
            self.entity(f"prompt/{place}", "Prompt", _tokens(prompt) | {"seat": trajectory.agent})
            facts = {"stop": str(sample.stop), "temperature": sample.temperature}
            logprob = {"logprob": float(sample.logprobs.sum())} if actor == POLICY else {}
            self.entity(f"sample/{place}", "Sample", _tokens(sample.tokens) | facts | logprob)
            self.write("activity", f"sampling/{place}", {"prov:type": _type("Sampling")})
            self.relate("used", activity=f"sampling/{place}", entity=f"prompt/{place}")
            for version in sorted({*sample.versions} - {-1}):
                self.relate("used", activity=f"sampling/{place}", entity=self._version(version))
            self.relate("wasGeneratedBy", entity=f"sample/{place}", activity=f"sampling/{place}")
            self.relate("wasAssociatedWith", activity=f"sampling/{place}", agent=actor)
            self.relate("wasInformedBy", informed=play, informant=f"sampling/{place}")
            if turn.parent >= 0:
                before = f"sample/{name}/{turn.parent}"
                self.relate("wasDerivedFrom", generatedEntity=f"prompt/{place}", usedEntity=before)
        return actors

    def _version(self, version: int) -> str:
        name, known = f"weights/{version}", self.weights.get(version, Weights())
        facts: dict[str, Any] = {"version": version, "model": self.selected.model}
        if known.stage:
            facts |= {"stage": known.stage, "step": known.step}
        if known.checkpoint is not None and name not in self._known:
            files = sorted(path for path in known.checkpoint.rglob("*") if path.is_file())
            facts |= {"checkpoint": known.checkpoint.parent.name, "sha256": digest_of(files, known.checkpoint)}
        if self.entity(name, "Weights", facts):
            self.relate("wasDerivedFrom", generatedEntity=name, usedEntity="model")
            self.relate("wasGeneratedBy", entity=name, activity=RUN)
        return name

    def _scores(self, name: str, played: PlayedEpisode) -> None:
        scores = played.record.scores
        if not scores:
            return
        self.write("activity", f"judging/{name}", {"prov:type": _type("Judging")})
        self.relate("used", activity=f"judging/{name}", entity=f"episode/{name}")
        self.relate("used", activity=f"judging/{name}", entity="reward")
        self.relate("wasAssociatedWith", activity=f"judging/{name}", agent=JUDGE, plan="reward")
        for number, score in enumerate(scores):
            place = f"score/{name}/{number}"
            facts = {"total": score.total, "parts": _json(dict(score.parts))}
            self.entity(place, "Score", facts | ({"words": _json(dict(score.words))} if score.words else {}))
            self.relate("wasGeneratedBy", entity=place, activity=f"judging/{name}")
            self.relate("wasDerivedFrom", generatedEntity=place, usedEntity=f"episode/{name}")
            self.relate("wasAttributedTo", entity=place, agent=JUDGE)

    def entity(self, name: str, kind: str, facts: Mapping[str, Any]) -> bool:
        """Writes an entity, and returns whether it is new."""
        if name in self._known:
            return False
        if kind in ("Weights", "Task"):  # several episodes name these
            self._known.add(name)
        attributes = {f"sojourn:{key}": _value(value) for key, value in facts.items() if value not in (None, "")}
        self.write("entity", name, {"prov:type": _type(kind), **attributes})
        return True

    def agent(self, name: str, facts: Mapping[str, Any]) -> None:
        if name not in self._known:
            self._known.add(name)
            attributes = {f"sojourn:{key}": value for key, value in facts.items() if value}
            self.write("agent", name, {"prov:type": _type("SoftwareAgent", "prov"), **attributes})

    def relate(self, kind: str, **ends: str) -> None:
        """Writes a relation, which has no name of its own; `ends` names its ends by their roles."""
        self._line(kind, f"_:{kind}{self.count}", {f"prov:{role}": f"run:{name}" for role, name in ends.items()})

    def write(self, section: str, name: str, attributes: Mapping[str, Any]) -> None:
        self._line(section, f"run:{name}", attributes)

    def _line(self, section: str, name: str, attributes: Mapping[str, Any]) -> None:
        self.files[section].write(to_line({name: attributes}).strip()[1:-1] + "\n")
        self.count += 1


def _weights(selected: SelectedEpisodes) -> dict[int, Weights]:
    """Returns the weights by version, from the metrics of the steps; checkpoints count steps over all stages."""
    before = selected.run.stage_starts
    held = {saved.step: saved.weights for saved in checkpoint.checkpoints(selected.run.checkpoints)}
    known: dict[int, Weights] = {}
    for line in metrics.read(selected.run.path / "metrics.jsonl"):
        version = line.values.get("version", -1.0)
        if version >= 0:
            step = before.get(line.stage, 0) + line.step + 1
            known[int(version)] = Weights(line.stage, line.step, held.get(step))
    return known


def _fields(table: Any) -> dict[str, Any]:
    """Returns a component's name and fields."""
    return {"name": str(table.get("name", "")), "fields": _json(table)} if isinstance(table, dict) else {}


def _tokens(tokens: IntArray) -> dict[str, Any]:
    return {"sha256": sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest(), "tokens": len(tokens)}


def _local(text: str) -> str:
    """Quotes a text for the local part of a qualified name."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="/-_.~")


def _json(value: Any) -> str:
    return to_json(value).decode()


def _type(name: str, prefix: str = "sojourn") -> dict[str, str]:
    return {"$": f"{prefix}:{name}", "type": "xsd:QName"}


def _value(value: Any) -> Any:
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> dict[str, str]:
    text = repr(float(value)).replace("nan", "NaN").replace("inf", "INF")
    return {"$": text, "type": "xsd:double"}
