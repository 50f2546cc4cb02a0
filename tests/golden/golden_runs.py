"""Makes short runs of every kind and prints their digests as JSON: what a run computes, apart from how long it takes.

    python tests/golden/golden_runs.py [name ...]        (in the environment that `portable` gives, as the test does)
    python tests/golden/golden_runs.py --of folder       (the digests of a run that was made already)

What is sampled together shares its matrix products, whose last bits depend on how many rows they have. Where a world
answers when it likes, as a browser does, episodes are played one by one.

A digest is of the final weights, the metrics, the records (tokens, log-probabilities, rewards, credit, streams) and the
exports: conversations, provenance and tables. Names and layouts of files, of the code and of the config are not part of
it, so that it stays the same where only those change. The parts of rewards are in the records, and not in the metrics,
too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).with_name("digests.json")
KNOWN = json.loads(DIGESTS.read_text())  # by arithmetic, then by run
STARTS = {
    "toy": 'name = "toy"\nrooms = 2',
    "choices": 'name = "toy"\nrooms = 2\nside_rooms = 0\ndoors = 0\ndecoys = 0\nobjects = 0\nchoices = true',
    "shop": 'name = "shop"\nproducts = 100',
    "guess": 'name = "tools"\ncls = "examples.guess:Guess"',
    "miniwob": 'name = "miniwob"\npages = ["click-button", "enter-text"]\ncontexts = 2',
    "matrix": 'name = "matrix"\nchoices = true',
}
HEAD = """
name = "golden"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
kernel = false
max_context = 4096
[sampling]
max_tokens = {tokens}
[rollout.limits]
turns = {turns}
[evaluation]
tasks = 4
[record]
checkpoint_every = 1
[env]
{env}
"""
WARMUP = """
[[stages]]
name = "warmup"
steps = 2
groups = { name = "experts", width = 4, distinct_tasks = 8, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 1e-3 }
"""
RL = """
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 3 }
optim = { lr = 1e-3 }
"""
PLAIN = """estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }, { name = "kl" }, { name = "entropy" }]
streams = [{ name = "ref_logprobs" }]
"""
GRPO = """estimator = { name = "grpo" }
losses = [{ name = "ppo" }, { name = "entropy" }]
"""
CRITIC = """estimator = { name = "gae" }
losses = [{ name = "ppo" }, { name = "value" }, { name = "entropy" }]
streams = [{ name = "values" }, { name = "next_values" }]
[critic]
model = "tiny:layers=1,hidden=64"
optim = { lr = 1e-3 }
"""
PROGRESS = '{ name = "process", stream = "progress", base = { name = "oprl" } }'
PROCESS = f'{{ name = "process", stream = "curiosity", base = {PROGRESS} }}'
LEARNING = f"""estimator = {PROCESS}
losses = [{{ name = "ppo" }}, {{ name = "entropy" }}]
streams = [
    {{ name = "progress" }},
    {{ name = "curiosity" }},
    {{ name = "implicit_reward", loss = "ce", optim = {{ lr = 1e-2 }} }},
]
"""
MALFORMED = '[reward]\nname = "native"\nmalformed = -0.5\n'  # a model that says anything is judged differently for it
PARTS = [
    "stages.rl.minibatches=2",
    "stages.rl.filters=[{name='roc', fraction=0.6}]",
    "stages.rl.groups.size=5",
    "stages.rl.groups.zero_signal='redraw'",
    "curriculum.name='shuffle'",
    "record.streams=[{name='policy_logprobs'}]",
    "record.drift_groups=1",
]


def recipe(env: str, rl: str, warmup: str = WARMUP, tokens: int = 6) -> str:
    agent = '[agent]\nname = "plain"\nchoices = true\n' if "choices" in STARTS[env] else ""
    return HEAD.format(env=STARTS[env], tokens=tokens, turns=8 if agent else 3) + agent + MALFORMED + warmup + RL + rl


RUNS: Mapping[str, tuple[str, Sequence[str]]] = {
    "toy": (recipe("toy", PLAIN), ()),
    "guess": (recipe("guess", GRPO, tokens=16), ()),
    "shop": (recipe("shop", GRPO, tokens=64), ()),
    "miniwob": (recipe("miniwob", GRPO, tokens=64), ["rollout.concurrency=1"]),  # see above
    "critic": (recipe("choices", CRITIC), ()),
    "learning": (recipe("choices", LEARNING), ()),
    "lora": (recipe("choices", PLAIN), ["model.lora={rank=4}"]),
    "lag": (recipe("choices", PLAIN), ["stages.rl.groups.max_lag=2"]),
    "seats": (recipe("matrix", GRPO, warmup=""), ()),
    "parts": (recipe("choices", GRPO), PARTS),
    "kernel": (recipe("toy", PLAIN), ["backend.kernel=true"]),
}
NATIVE = ("kernel",)  # what the compiler makes of our C depends on the processor
KINDS = ("weights", "metrics", "records", "exports", "provenance", "parquet")  # of digests
OF_CONFIG = ("fields", "agent", "sampling")  # attributes of provenance that quote the config, whose keys may be renamed
LATER = ("origin", "reused_in", "model_name", "notes_json")  # which exports did not say when the digests were recorded
OF_CODE = ("run:config", "run:code", "run:sojourn")  # whose attributes tell of files and versions of the code


def portable() -> dict[str, str]:
    """Returns the environment in which arithmetic depends as little as can be on which processor of x86-64 this is."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    features = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "GLIBC_TUNABLES"))},
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(Path(__file__).parents[1])]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": features,
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F",
    }


def processor() -> str:
    """Returns what a compiler makes native code for: this machine's processor, and the compiler."""
    compiler = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=False).stdout.strip()
    *parts, flags = _cpuinfo("vendor_id", "cpu family", "model", "stepping", "flags")
    return " ".join([*parts, digest(flags.encode())[:8], "cc", compiler])


def own_key(arithmetic: str) -> str:
    """Returns the key of what was recorded for this generation of processors alone. An AMD EPYC of 2021 computes other
    weights than one of 2022 although `arithmetic` is the same; most likely it guesses roots otherwise, of numbers that
    are not among those."""
    return f"{arithmetic}, {' '.join(_cpuinfo('vendor_id', 'cpu family', 'model'))}"


def _cpuinfo(*names: str) -> list[str]:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    said = {name.strip(): value.strip() for name, _, value in lines}
    return [said.get(name, "") for name in names]


def arithmetic() -> str:
    """Returns a digest of elementary functions: torch takes its square root, for one, from the processor's guess."""
    import torch

    x = torch.linspace(0.1, 5.0, 4096).reshape(64, 64)
    found = [x.sqrt(), x.rsqrt(), x.exp(), x.log(), x.tanh(), x.softmax(-1), x @ x, x.sum(0)]
    return digest(*(values.numpy().tobytes() for values in found))


def digests(path: Path) -> dict[str, str]:
    """Returns the digests of a finished run, by what they are of; no "parquet" where pyarrow is not installed."""
    found = {"weights": weights(path), "metrics": metrics(path), "records": records(path), "exports": exports(path)}
    found["provenance"] = provenance(path)
    return found | ({"parquet": parquet(path)} if importlib.util.find_spec("pyarrow") else {})


def weights(path: Path) -> str:
    from safetensors.numpy import load_file

    from sojourn.record import checkpoint

    found = checkpoint.latest(path / "checkpoints")
    assert found is not None
    parts = []
    kept = {"optimizer.safetensors", "reference.safetensors"}  # beside the weights, to go on with more steps
    for file in sorted(file for file in found.weights.glob("*.safetensors") if file.name not in kept):
        for name, values in sorted(load_file(file).items()):
            parts += [f"{name} {values.dtype} {values.shape}".encode(), values.tobytes()]
    return digest(*parts)


def metrics(path: Path) -> str:
    from trained_run import untimed

    lines = [untimed(json.loads(line)) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return digest(*(text({name: line[name] for name in line if not name.startswith("part_")}) for line in lines))


def records(path: Path) -> str:
    from sojourn.record.episodes.store import EpisodeStore

    parts: list[bytes] = []
    with EpisodeStore(path) as store:
        for entry in sorted(store.query(), key=lambda e: (e.stage, e.step, e.slot, e.place)):
            record = store.read(entry)
            parts.append(text([entry.stage, entry.step, entry.slot, entry.place, entry.id, record.episode.task.id]))
            for trajectory in record.episode.trajectories:
                parts.append(text([trajectory.agent, trajectory.ending, trajectory.trainable]))
                for turn in trajectory.turns:
                    sample = turn.sample
                    parts += [turn.context.tobytes(), sample.tokens.tobytes(), sample.logprobs.tobytes()]
                    parts.append(text([turn.parent, turn.reward, dict(turn.info), turn.state, list(turn.images)]))
                    parts.append(text([list(sample.versions), sample.stop, sample.temperature]))
            for score in record.scores:
                parts += [score.turns.tobytes(), text(dict(score.parts))]
            for credit in record.credits:
                parts += [values.tobytes() for values in (*credit.tokens, *(credit.targets or ()))]
            for name, told in sorted(record.streams.items()):
                parts += [name.encode(), *(values.tobytes() for of in told for values in of)]
    return digest(*parts)


def exports(path: Path) -> str:
    parts = []
    for words in (["chat"], ["chat", "--tokens"], ["adp"]):
        parts += [text(untimed(json.loads(line))) for line in exported(path, *words).read_text().splitlines()]
    return digest(*parts)


def provenance(path: Path) -> str:
    """Returns the digest of all statements of the provenance; relations have no names of their own."""
    document = json.loads(exported(path, "prov").read_text())
    parts = []
    for section, statements in sorted(document.items()):
        if section != "prefix":  # the name and the config of the run
            told = ([name * (not name.startswith("_:")), attributes(name, of)] for name, of in statements.items())
            parts += [section.encode(), *sorted(map(text, told))]
    return digest(*parts)


def attributes(name: str, of: Mapping[str, Any]) -> Any:
    """Returns what a statement says, apart from the files and versions of the code, the config, and times."""
    left = {"type"} if name in OF_CODE else {key.partition(":")[2] for key in of} - {*OF_CONFIG, "startTime", "seconds"}
    left -= {"weights"} if name == "run:model" else {"sha256"} if name.startswith("run:weights/") else set()
    return untimed({key: value for key, value in of.items() if key.partition(":")[2] in left})


def parquet(path: Path) -> str:
    from pyarrow.parquet import read_table

    return digest(*(text(untimed(row)) for row in read_table(exported(path, "parquet")).to_pylist()))


def exported(path: Path, *words: str) -> Path:
    """Returns the file of an export, beside the run."""
    from typer.testing import CliRunner

    from sojourn.cli import app

    out = path.parent / f"{path.name}.{'-'.join(words)}"
    done = CliRunner().invoke(app, ["export", str(path), "--out", str(out), "--format", *words])
    assert done.exit_code == 0, done.output
    return out


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: untimed(of) for key, of in value.items() if key not in ("seconds", "run", *LATER)}
    if isinstance(value, str) and value.startswith('{"'):
        return untimed(json.loads(value))  # what a format keeps as text
    return [untimed(of) for of in value] if isinstance(value, list) else value


def text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:20]


def main(names: Sequence[str]) -> None:
    if names[:1] == ["--of"]:
        print(json.dumps({"arithmetic": arithmetic(), "digests": digests(Path(names[1]))}))
        return
    import trained_run

    from sojourn import threads

    threads.prepare(1)
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"arithmetic": arithmetic()}
        for name in names or RUNS:
            table, overrides = RUNS[name]
            found[name] = digests(trained_run.train(Path(folder) / name, *overrides, recipe=table))
            print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
