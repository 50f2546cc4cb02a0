"""The files of `deploy/` agree with the requirements, the Makefile, and the schemas of the programs that read them.

No container, Slurm or Kubernetes is started here: the scripts run with stand-ins for the programs of others, which
write down how they were called.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from sojourn.backends.ray.backend import Ray
from sojourn.train.resolve import load

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RECIPE = "recipes/toy/train.toml"
WORKER_KEYS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
RAY_JOB = {  # the fields that we use of KubeRay's API ray.io/v1; all of the manifest was held against its CRD by hand
    "spec": {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"},
    "spec.rayClusterSpec": {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"},
    "spec.rayClusterSpec.authOptions": {"mode"},
    "spec.rayClusterSpec.headGroupSpec": {"rayStartParams", "template"},
}


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the Dockerfile with their arguments, each in one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word
    ]


def made(*goal: str) -> str:
    """Returns the commands that make would run."""
    return subprocess.run(["make", "-n", "-B", *goal], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def pin(package: str) -> str:
    files = "".join((ROOT / name).read_text() for name in ("requirements.txt", "requirements-worlds.txt"))
    [version] = re.findall(rf"^{package}==(\S+)", files, re.MULTILINE)
    return version


# -- the image


def test_all_that_is_copied_is_there_and_is_sent_to_the_builder():
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert rules[0] == "*", "nothing is sent but what is named"
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {source for word, rest in instructions() if word == "COPY" for source in rest.split()[:-1]}
    assert copied == sent
    assert {source for source in copied if not (ROOT / source).exists()} == set()
    assert any(fnmatch("sojourn/__pycache__", rule) for rule in rules[1:])


def test_the_image_is_installed_as_make_installs():
    ours = [rest for word, rest in instructions() if word == "RUN" and rest.startswith("pip install")]
    theirs = re.findall(
        r"bin/(pip install .*?)(?: 2>/dev/null.*)?$", made(".venv-none/worlds", "VENV=.venv-none"), re.MULTILINE
    )
    theirs = [re.sub(r" -r tests/\S+", "", command) for command in theirs]  # what tests alone need
    wanted = []
    for command in ours:
        command = command.replace(
            '--index-url "$TORCH_INDEX"', "--retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu"
        )
        wanted.append(command.replace(" -r deploy/requirements.txt", ""))
    assert wanted[-1] == "pip install -q --no-deps -e . -e worlds"
    ordered = [command for command in theirs if command in wanted]
    assert set(ordered) == set(wanted)
    assert [command for command in wanted if command != wanted[-1]] == [c for c in ordered if c != wanted[-1]], (
        "the same order"
    )


def test_the_image_has_the_programs_of_the_worlds():
    [apt] = [rest for word, rest in instructions() if word == "RUN" and "apt-get" in rest]
    packages = set(re.split(r"--no-install-recommends|&&", apt)[2].split())
    [programs] = re.findall(r"^PROGRAMS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*programs.split(), "chromium-headless-shell"} <= packages
    assert {"rsync", "openssh-client"} <= packages, "`ray up` calls them in the head's container"


def test_the_user_of_the_image_is_not_root():
    words = [word for word, _ in instructions()]
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["1000"], "a number, which `runAsNonRoot` can check"
    assert words.index("USER") > max(number for number, word in enumerate(words) if word in ("RUN", "COPY"))
    [made_user] = [rest for word, rest in instructions() if "useradd" in rest]
    assert "--uid 1000" in made_user
    [variables] = [rest for word, rest in instructions() if word == "ENV" and "HOME" in rest]
    assert {"HOME=/home/sojourn", "RAY_AUTH_MODE=token"} <= set(variables.split())


def test_the_dashboards_requirements_are_all_that_ray_asks_for():
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    text = "".join(file.read_text() for file in (*ROOT.glob("requirements*.txt"), DEPLOY / "requirements.txt"))
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    pins = {re.sub(r"[-_.]+", "-", name.lower()): version for name, version in pins.items()}
    asked = [Requirement(line) for line in requires("ray") or ()]
    needed = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": "default"})]
    assert len(needed) > 15
    names = {re.sub(r"[-_.]+", "-", one.name.lower()): one for one in needed}
    wrong = [str(one) for name, one in names.items() if name not in pins or pins[name] not in one.specifier]
    assert wrong == []


# -- ray up


def cluster() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "cluster.yaml").read_text())


def test_the_cluster_is_valid_for_ray():
    jsonschema = pytest.importorskip("jsonschema")
    autoscaler = pytest.importorskip("ray.autoscaler")
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(cluster(), schema)
    prepared = prepare_config(cluster())
    validate_config(prepared)
    assert prepared["max_workers"] == len(cluster()["provider"]["worker_ips"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster(), "setup_command": []}, schema)


def test_the_clusters_token_lies_in_the_home_of_the_images_user():
    assert cluster()["file_mounts"] == {"/home/sojourn/.ray/auth_token": "~/.ray/auth_token"}
    assert any(option.endswith(":/runs") for option in cluster()["docker"]["run_options"])


# -- Kubernetes


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    volume, job = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return volume, job


def pods() -> list[dict[str, Any]]:
    spec = manifest()[1]["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_the_job_has_the_fields_of_kuberay():
    _, job = manifest()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    for path, names in RAY_JOB.items():
        found = job
        for part in path.split("."):
            found = found[part]
        assert set(found) == names, path
    assert all(set(group) == WORKER_KEYS for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"])
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


def test_the_job_runs_the_pinned_ray_with_a_token():
    spec = manifest()[1]["spec"]["rayClusterSpec"]
    assert spec["rayVersion"] == pin("ray")
    assert spec["authOptions"] == {"mode": "token"}


def test_all_pods_are_equal_but_in_their_size():
    volume, _ = manifest()
    for pod in pods():
        [container] = pod["containers"]
        assert container["image"] == cluster()["docker"]["image"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}
        [claim] = pod["volumes"]
        assert claim["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
        assert container["volumeMounts"] == [{"name": claim["name"], "mountPath": "/runs"}]
        assert container["resources"]["limits"]["memory"], "by which Ray sees how much there is"
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_cluster_of_the_job_has_room_for_what_it_trains():
    """The entrypoint is one that `sojourn train` accepts, and its processes find a place."""
    spec = manifest()[1]["spec"]
    shell, script, run, recipe, *overrides = spec["entrypoint"].split()
    assert (shell, script, run) == ("sh", "/opt/sojourn/deploy/train.sh", "/runs/toy")
    found = load(ROOT / recipe.removeprefix("/opt/sojourn/"), ["backend.name=ray", "backend.address=auto", *overrides])
    backend = found.recipe.backend
    assert isinstance(backend, Ray)
    needed = sum(one.count * one.cpus for one in backend.needs.values())
    there = sum(group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
                for group in spec["rayClusterSpec"]["workerGroupSpecs"])  # fmt: skip
    assert 0 < needed <= there


# -- the scripts

STAND_IN = """#!{python}
import json, os, sys
name = os.path.basename(sys.argv[0])
seen = {{key: os.environ.get(key, "") for key in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_TMPDIR")}}
with open({log!r}, "a") as file:
    file.write(json.dumps([name, sys.argv[1:], seen]) + "\\n")
if name == "scontrol":
    print({nodes!r})
if name == "srun":
    import time
    os.closerange(1, 3)  # whoever reads what the script prints need not wait for a step that is left
    time.sleep({srun_s})
if name == "sojourn":
    sys.exit({exit})
"""


def called(tmp_path: Path, *command: str, nodes: int = 3, exit: int = 0, srun_s: float = 60, answers: bool = True):
    """Runs a script with stand-ins for other programs. Returns how it ended, and the calls."""
    log, programs = tmp_path / "calls", tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    names = "\n".join(f"node{number}" for number in range(nodes))
    text = STAND_IN.format(python=sys.executable, log=str(log), nodes=names, srun_s=srun_s, exit=exit)
    for name in ("scontrol", "srun", "sojourn", "ray"):
        (programs / name).write_text(text if name != "ray" or answers else "#!/bin/sh\nexit 1\n")
    # what waits for all nodes to join waits here until they were told to: else the job may end before that
    joined = f'until [ "$(grep -c srun {log})" -ge {min(nodes, 2)} ]; do sleep 0.05; done'
    waits = f'if [ "$1" = - ]; then cat > /dev/null; {joined}; exit; fi'
    (programs / "python").write_text(f'#!/bin/sh\n{waits}\nexec {sys.executable} "$@"\n')
    (programs / "hostname").write_text("#!/bin/sh\necho 192.0.2.7 fd00::7\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables |= {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_NODELIST": "node[0-2]", "SLURM_JOB_ID": "41"}
    variables |= {
        "SLURM_CPUS_PER_TASK": "6",
        "VENV": str(tmp_path / "venv"),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100)
    lines = log.read_text().splitlines() if log.exists() else []
    return done, [json.loads(line) for line in lines]


def options(arguments: list[str]) -> set[str]:
    return {word for word in arguments if word.startswith("--")}


def test_a_job_of_slurm_starts_ray_on_each_node_and_trains_on_the_first(tmp_path):
    done, calls = called(tmp_path, "bash", str(DEPLOY / "slurm.sh"), str(tmp_path / "run"), RECIPE, "seed=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert calls[0][:2] == ["scontrol", ["show", "hostnames", "node[0-2]"]]
    ((head, rest),) = [
        sorted((words for name, words, _ in calls if name == "srun"), key=lambda words: "--head" not in words)
    ]
    assert {"--nodes=1", "--ntasks=1", "--nodelist=node0", "--head", "--node-ip-address=192.0.2.7"} <= options(head)
    assert {"--port=6379", "--include-dashboard=false"} <= options(head)
    assert {"--nodes=2", "--ntasks=2", "--exclude=node0", "--address=192.0.2.7:6379"} <= options(rest)
    for words in (head, rest):
        assert words[words.index("ray") : words.index("ray") + 2] == ["ray", "start"]
        assert {"--cpus-per-task=6", "--num-cpus=6", "--block"} <= options(words), "each step asks for its processors"
    [train] = [words for name, words, _ in calls if name == "sojourn"]
    assert train == [
        "train",
        RECIPE,
        "--out",
        str(tmp_path / "run"),
        "backend.name=ray",
        "backend.address=auto",
        "seed=3",
    ]


def test_all_of_a_job_has_one_token_and_others_have_another(tmp_path):
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _, calls = called(tmp_path / name, "bash", str(DEPLOY / "slurm.sh"), "run", RECIPE)
        [found] = {tuple(given.values()) for program, _, given in calls if program != "scontrol"}
        token, *others = found
        assert others == ["token", "192.0.2.7:6379", "/tmp/ray-41"]
        assert re.fullmatch("[0-9a-f]{64}", token)
        assert token not in str([words for _, words, _ in calls]), "whoever lists the processes sees arguments"
        seen.append(token)
    assert len(set(seen)) == 2


def test_a_job_of_one_node_has_no_other_step(tmp_path):
    done, calls = called(tmp_path, "bash", str(DEPLOY / "slurm.sh"), "run", RECIPE, nodes=1)
    assert done.returncode == 0
    assert len([name for name, *_ in calls if name == "srun"]) == 1


def test_a_job_ends_as_its_training_does_and_leaves_no_step(tmp_path):
    done, calls = called(tmp_path, "bash", str(DEPLOY / "slurm.sh"), "run", RECIPE, exit=3)
    assert done.returncode == 3
    left = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "venv" / "bin" / "srun") not in left
    assert [name for name, *_ in calls].count("sojourn") == 1


def test_a_job_whose_head_does_not_start_ends(tmp_path):
    done, calls = called(tmp_path, "bash", str(DEPLOY / "slurm.sh"), "run", RECIPE, srun_s=0, answers=False)
    assert done.returncode == 1
    assert done.stderr == "Ray did not start on node0\n"
    assert "sojourn" not in {name for name, *_ in calls}


def test_a_run_that_is_there_is_resumed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    _, [call] = called(tmp_path, "sh", str(DEPLOY / "train.sh"), str(tmp_path / "run"), RECIPE, "seed=3")
    assert call[:2] == ["sojourn", ["train", "--resume", str(tmp_path / "run"), "seed=3"]]


def test_a_script_without_a_recipe_says_what_is_missing(tmp_path):
    done, calls = called(tmp_path, "sh", str(DEPLOY / "train.sh"), "run")
    assert done.returncode != 0
    assert "the recipe" in done.stderr
    assert calls == []


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_valid(script):
    shell = shlex.split(script.read_text().splitlines()[0].removeprefix("#!"))[-1]
    subprocess.run([shell, "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
