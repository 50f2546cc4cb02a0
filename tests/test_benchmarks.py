"""The bake-off: every recipe resolves and differs from GRPO's as it says; its figures are right; it goes on."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from spawned import fork_children

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import bakeoff
import credit
import credit_plot
import experience
import keydoor
import kills_ray
import learning
import locks
import miniwob_all
import prompted
import proposers
import selfplay
import sub_agents
from bakeoff import WARMUP, Job
from credit import BASE, CREDIT, METHODS, SEEDS

from sojourn.abilities import sub_agent_models
from sojourn.envs.toy import Toy
from sojourn.train.recipe import Recipe
from sojourn.train.resolve import resolve
from sojourn.types import Message, Role


def resolved(method: str) -> Recipe:
    return resolve(Job(CREDIT, method, 0).tables(Path("work"))).recipe


def made(won: int, success: float, seconds: float) -> dict:
    evaluations = [{"name": "before", "won": 30, "of": 100}, {"name": "train", "won": won, "of": 100}]
    return {"success": [success] * 8, "evaluations": evaluations, "seconds_per_step": [9.0, seconds, seconds]}


def test_there_are_enough_methods_and_seeds():
    assert len(METHODS) >= 14
    assert len(SEEDS) >= 5
    assert METHODS[BASE] == {}


def test_every_recipe_can_be_built(capsys):
    credit.main(["--dry", "--seeds", "0"])
    assert len(capsys.readouterr().out.splitlines()) == len(METHODS) + 1


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_given_the_same(method):
    """The same starts, tasks, episodes, learning rate and updates; and no two methods are one."""
    base, own = resolved(BASE), resolved(method)
    for part in ("env", "model", "seed", "sampling", "rollout", "curriculum", "evaluation", "reward"):
        assert getattr(own, part) == getattr(base, part)
    [ours], [theirs] = own.stages, base.stages
    for part in ("steps", "groups", "minibatches", "optim", "filters"):
        assert getattr(ours, part) == getattr(theirs, part)
    others = [other for other in METHODS if other != method]
    assert all(METHODS[other] != METHODS[method] for other in others)


def test_methods_start_where_cloning_ended_on_other_tasks():
    warm, own = resolved(WARMUP), resolved(BASE)
    assert own.model.weights == "work/seed-0/warmup/run"
    assert own.seed != warm.seed
    assert (own.env, own.model.name) == (warm.env, warm.model.name)


def test_differences_are_paired_by_seed():
    base = {"0": made(40, 0.4, 2.0), "1": made(60, 0.5, 2.0), "2": made(50, 0.5, 2.0)}
    better = {"0": made(50, 0.4, 4.0), "1": made(71, 0.5, 4.0), "2": made(59, 0.5, 4.0)}
    found = bakeoff.summary(BASE, {BASE: base, "better": better, "alone": {"0": made(80, 0.9, 2.0)}})
    assert found[BASE]["final_minus_grpo"] == [0, 0, 0]
    assert found[BASE]["final"] == pytest.approx([0.5, 0.5 - 0.2484, 0.5 + 0.2484], abs=1e-4)  # t of 2: 4.303
    assert found["better"]["final_minus_grpo"] == pytest.approx([0.1, 0.1 - 0.0248, 0.1 + 0.0248], abs=1e-4)
    assert found["better"]["verdict"] == "better"
    assert found["better"]["times_grpo"][0] == 2
    assert found["better"]["training_minus_grpo"][0] == 0
    assert found["alone"]["final_minus_grpo"] == [0.4, None, None]
    assert found["alone"]["verdict"] == "too few seeds"


def test_a_bake_off_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    def train(command):
        began.append(Path(command[4]).parent.name)
        if len(began) == 3:
            raise RuntimeError("killed")

    began: list[str] = []
    monkeypatch.setattr(bakeoff, "execute", train)
    monkeypatch.setattr(bakeoff, "measured", lambda run: made(50, 0.5, 2.0))
    found = bakeoff.bake(CREDIT, ["grpo", "rloo"], [0, 1], tmp_path, workers=1)
    assert found.keys() == {"rloo", "grpo"}
    assert len(found["grpo"]) + len(found["rloo"]) == 3
    assert len(began) == 6
    again = bakeoff.bake(CREDIT, ["grpo", "rloo"], [0, 1], tmp_path, workers=1)
    assert len(began) == 7
    assert [len(runs) for runs in again.values()] == [2, 2]
    monkeypatch.setitem(METHODS, "rloo", {"estimator": {"name": "opo"}})
    bakeoff.bake(CREDIT, ["grpo", "rloo"], [0, 1], tmp_path, workers=1)
    assert len(began) == 9  # another recipe: done again


def test_what_a_result_has_is_not_made_again_and_stands_beside_what_is_new(tmp_path, monkeypatch):
    began: list[str] = []
    monkeypatch.setattr(bakeoff, "execute", lambda command: began.append(Path(command[4]).parent.name))
    monkeypatch.setattr(bakeoff, "measured", lambda run: made(50, 0.5, 2.0))
    monkeypatch.setattr(bakeoff, "RESULTS", tmp_path / "results")
    assert bakeoff.recorded("credit") == {}
    (tmp_path / "results").mkdir()
    figures = {"runs": {"grpo": {"0": made(1, 0.1, 2.0), "10": made(10, 0.1, 2.0)}, "sapo": {"2": made(2, 0.1, 2.0)}}}
    (tmp_path / "results" / "credit.json").write_text(json.dumps({"figures": figures}))
    known = bakeoff.recorded("credit")
    found = bakeoff.bake(CREDIT, ["grpo", "rloo"], [0, 1], tmp_path, 1, known)
    assert [name.split("-")[0] for name in began] == [".warmup", ".warmup", ".grpo", ".rloo", ".rloo"]
    both = bakeoff.joined(known, found, ["grpo", "rloo", "sapo", "opo"])
    assert {name: list(runs) for name, runs in both.items()} == {
        "grpo": ["0", "1", "10"], "rloo": ["0", "1"], "sapo": ["2"],
    }  # fmt: skip
    assert both["grpo"]["0"] == known["grpo"]["0"]


def test_the_picture_is_drawn_from_the_figures_alone(tmp_path):
    runs = {name: {str(s): made(40 + s, 0.4, 2.0) for s in range(2)} for name in ("grpo", "gigpo", "sapo")}
    methods = {name: METHODS[name] for name in runs}
    figures = {"runs": runs, "methods": methods, "summary": bakeoff.summary(BASE, runs)}
    credit_plot.draw(json.loads(json.dumps(figures)), tmp_path / "credit.png")
    assert (tmp_path / "credit.png").stat().st_size > 10_000
    assert "gigpo" in bakeoff.told(BASE, figures)


def test_the_world_of_the_comparison_with_trl_is_played_and_its_clock_writes(tmp_path):
    """TRL is not installed here, so that nothing else would notice when a name that its script uses has changed."""
    family = keydoor.KeyDoors(rooms=2, doors=0, turns=8)
    play = family.play(family.tasks("train")[0])
    while play.observation is not None:
        play.say(play.expert())
    assert play.won
    assert "treasure" in family.system
    sink = keydoor.Clock(path=str(tmp_path / "clock.jsonl")).bind(tmp_path, {})
    sink.write(0, "rl", {"success": 1.0})
    assert json.loads((tmp_path / "clock.jsonl").read_text())["success"] == 1.0


def test_every_variant_of_experience_can_be_built_and_learns_from_the_base(capsys):
    experience.main(["--dry", "--seeds", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(
        len(experience.bakeoff_of(world, part).variants) + 1 for world in experience.WORLDS for part in experience.PARTS
    )
    methods = experience.bakeoff_of("toy", "methods")
    cloned = resolve(Job(methods, "cloned", 0).tables(Path("work"))).recipe
    assert cloned.stages[0].groups.path == "work/seed-0/live/run"
    assert (cloned.model.weights, cloned.stages[0].early_stop.tokens) == ("work/seed-0/warmup/run", 0)
    for world, part in ((world, part) for world in experience.WORLDS for part in experience.PARTS):
        variants = experience.bakeoff_of(world, part).variants
        assert all(one != other for one, other in itertools.combinations(variants.values(), 2))
        assert len(variants) >= {"curricula": 9, "sources": 7, "methods": 6}[part]


def test_the_base_is_trained_before_what_learns_from_it(tmp_path, monkeypatch):
    began: list[str] = []
    monkeypatch.setattr(bakeoff, "execute", lambda command: began.append(Path(command[4]).parent.name.split("-")[0]))
    monkeypatch.setattr(bakeoff, "measured", lambda run: made(50, 0.5, 2.0))
    bakeoff.bake(experience.bakeoff_of("toy", "methods"), ["cloned", "live"], [0, 1], tmp_path, workers=1)
    assert began == [".warmup", ".warmup", ".live", ".live", ".cloned", ".cloned"]


SHORT = ["stages.warmup.steps=1", "stages.rl.steps=6", "stages.rl.groups.width=1", "evaluation.tasks=2"]


def test_a_recipe_is_trained_once_and_its_weights_play_anew(tmp_path, capsys, monkeypatch):
    fork_children(monkeypatch, tmp_path)
    words = ["toy", "--seeds", "0", "--name", "short", "--with", *SHORT, "--keep", "--folder", str(tmp_path)]
    learning.main(words)
    place = tmp_path / "toy" / "short" / "seed-0"
    made_at = (place / learning.FIGURES).stat().st_mtime_ns
    [written] = [Path(line) for line in capsys.readouterr().out.splitlines() if line.endswith(".json")]
    found = json.loads(written.read_text())["figures"]
    own = found["runs"]["0"]
    assert [one["name"] for one in own["evaluations"]] == ["before", "warmup", "rl"]
    assert len(own["training"]) == 6
    assert found["summary"]["final"][0] == found["summary"]["worst"] == own["final"]["success"][0]
    learning.main(words)
    assert (place / learning.FIGURES).stat().st_mtime_ns == made_at
    (place / learning.FIGURES).unlink()  # as where it was killed before the weights played anew
    assert (place / "toy-0" / "checkpoints").exists()
    learning.main([word for word in words if word != "--keep"])
    assert not (place / "toy-0" / "checkpoints").exists()
    again = json.loads((place / learning.FIGURES).read_text())
    assert (again["training"], again["final"]) == (own["training"], own["final"])
    with pytest.raises(SystemExit, match="no training ended well"):
        learning.main([*words, "--with", *SHORT[1:]])  # is another recipe of the same name
    assert "figures of another recipe" in capsys.readouterr().err


def test_worlds_are_tags_where_there_are_several():
    of = {"success": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    summary = {"overall": of, "envs": {"toy": of}, "tags": {"easy": of}}
    assert list(learning.outcome(summary)["tags"]) == ["easy"]
    assert list(learning.outcome({**summary, "envs": {"toy": of, "shop": of}})["tags"]) == ["toy", "shop", "easy"]


def evaluation(name, **tags):
    return {"name": name, "success": [0.5, 0.4, 0.6], "tags": tags}


def test_what_is_worse_after_training_is_named():
    cloned = evaluation("warmup", fell=[0.8, 0.7, 0.9], noise=[0.5, 0.3, 0.7], rose=[0.1, 0.0, 0.3])
    final = evaluation("final", fell=[0.2, 0.1, 0.3], noise=[0.4, 0.2, 0.6], rose=[0.9, 0.8, 1.0], new=[0.0, 0.0, 0.1])
    runs = {
        "10": {"evaluations": [cloned, final], "final": final, "fall": 0.1, "seconds": 10, "diagnosed": ["collapsed"]},
        "11": {
            "evaluations": [cloned],
            "final": {**cloned, "success": [0.9, 0.8, 1.0]},
            "fall": 0.3,
            "seconds": 30,
            "diagnosed": [],
        },
    }
    over = learning.summary(runs)
    assert over["worse"] == {"10": ["fell"]}
    assert over["diagnosed"] == {"10": ["collapsed"]}
    assert (over["final"][0], over["worst"], over["fall"][0], over["seconds"][0]) == (0.7, 0.5, 0.2, 20.0)


def plays(success, tags=("easy",)):
    return [(step, tags, value) for step, value in enumerate(success)]


def test_how_far_training_fell_is_of_steps_in_a_row():
    """Of 0 1 1 1 1 1 0 0 the best five are all 1, of the last five three are."""
    assert learning.fall(plays([0, 1, 1, 1, 1, 1, 0, 0])) == 0.4
    assert learning.fall(plays([0, 0.2, 0.4, 0.6, 0.8])) == 0.0
    assert learning.fall(plays([1.0] * 4)) is None
    assert learning.fall(plays([1.0, None, 1.0, 1.0, 0.5])) == 0.0  # an episode that failed says nothing


def test_a_curriculum_that_draws_what_is_hard_is_not_a_fall():
    """Easy tasks, always solved, are drawn in the first five steps, hard ones, never solved, from the fifth on."""
    easy, hard = plays([1.0] * 5), [(step + 4, ("hard",), 0.0) for step in range(6)]
    assert learning.fall([*easy, *hard]) == 0.0
    assert learning.fall([*easy, *hard, (9, ("easy",), 0.0)]) == 0.5


def test_success_over_the_pages_of_miniwob_is_of_each_set_of_pages():
    solved = {"click-button", "tic-tac-toe", "drag-box"}  # of the published 56 two, with an expert two
    pages = {page: float(page in solved) for page in miniwob_all.page_names()}
    over = miniwob_all.over(pages)
    assert over == {
        "all": round(3 / 130, 4),
        "with_expert": round(2 / 101, 4),
        "without_expert": round(1 / 29, 4),
        "published": round(2 / 56, 4),
    }
    nothing = dict.fromkeys(pages, 0.0)
    found = miniwob_all.summary({"0": {"cloned": {"pages": nothing}, "trained": {"pages": pages}}})
    assert (found["cloned"]["sets"]["all"][0], found["trained"]["sets"]["all"][0]) == (0, over["all"])


def test_what_plays_all_pages_of_miniwob_begins_with_what_was_cloned(tmp_path, monkeypatch):
    began: list[tuple[str, ...]] = []
    summary = {"tags": {page: {"success": {"mean": 0.5}} for page in miniwob_all.page_names()}}
    monkeypatch.setattr(miniwob_all, "table", lambda path, settings: {"settings": list(settings)})
    monkeypatch.setattr(miniwob_all, "finish", lambda path, settings, wanted, run: run.mkdir(parents=True))
    monkeypatch.setattr(miniwob_all, "execute", lambda command: began.append(command) or json.dumps(summary))
    of_run = {"name": "warmup", "success": [0.5, 0.4, 0.6], "tags": {"click-test": [1.0, 0.3, 1.0]}}
    monkeypatch.setattr(miniwob_all, "measured", lambda run: {"evaluations": [of_run]})
    overrides = {"cloned": ["groups.path=demos/{seed}"], "trained": []}
    for _ in range(2):  # the second time all is there
        found = miniwob_all.trained(3, tmp_path, overrides)
        assert found["trained"]["pages"] == dict.fromkeys(miniwob_all.page_names(), 0.5)
        assert found["cloned"]["evaluations"] == [{"name": "warmup", "success": [0.5, 0.4, 0.6]}]
    cloned, played = (Path(command[-1]) for command in began)
    assert miniwob_all.settings("trained", 3, tmp_path) == ["seed=3", f"model.weights={cloned}"]
    assert miniwob_all.settings("cloned", 3, tmp_path, overrides["cloned"]) == ["seed=3", "groups.path=demos/3"]
    assert cloned.name != played.name
    monkeypatch.setattr(miniwob_all, "table", lambda path, settings: {})
    with pytest.raises(RuntimeError, match="is of another recipe"):
        miniwob_all.trained(3, tmp_path, overrides)


def test_the_recipes_of_all_pages_of_miniwob_can_be_built(capsys):
    for until, count in (("trained", 2), ("cloned", 1)):
        miniwob_all.main(["--dry", "--until", until])
        assert len(capsys.readouterr().out.splitlines()) == count


def test_runs_of_other_settings_are_not_added_to_the_result_of_all_pages(capsys):
    with pytest.raises(SystemExit):
        miniwob_all.main(["--add", "--cloning", "model.dtype=fp32"])
    assert "--add with overrides: the result has runs of the recipes as they are" in capsys.readouterr().err


def test_the_table_of_pages_says_where_they_began():
    cloned = dict.fromkeys(miniwob_all.page_names(), 0.5)
    table = miniwob_all.page_table(cloned, {**cloned, "click-test": 0.8, "simon-says": 0.6})
    assert "| with an expert | 80% | 1 | click-test (from 50%) |" in table.splitlines()
    assert "| without | 60% | 1 | simon-says |" in table.splitlines()


async def test_worked_examples_are_what_the_expert_does():
    family = Toy(rooms=2, side_rooms=0, decoys=0)
    one = await prompted.worked(family, 1)
    assert one == (await prompted.worked(family, 2)).partition("\n\nExample 2.")[0]
    assert one.startswith("\n\nExample 1.\nUser: ")
    assert one.count("\nYou: ") == one.count("User: ") > 1
    assert await prompted.worked(family, 0) == ""


def test_cells_differ_in_model_and_prompt_alone(capsys):
    prompted.main(["toy", "--dry", "--examples", "0,2"])
    assert len(capsys.readouterr().out.splitlines()) == 8
    recipe = {"agent": {"name": "plain"}, "backend": {"name": "torch", "threads": 1}, "evaluation": {"tasks": 9}}
    plain, shown = (prompted.cell(recipe, "tiny", text, 0.0) for text in ("", "Examples."))
    assert plain["agent"] == shown["agent"]["base"] == {"name": "plain"}
    assert plain["backend"] == {"name": "torch", "threads": 1, "max_context": prompted.CONTEXT}
    assert {**shown, "agent": plain["agent"]} == plain


@pytest.mark.parametrize("variant", selfplay.VARIANTS)
@pytest.mark.parametrize("game", selfplay.GAMES)
def test_self_play_has_a_bonus_that_stays_and_no_momentum_where_much_is_hidden(game, variant):
    pytest.importorskip("pyspiel")
    recipe = resolve(selfplay.Job(game, variant, 3).tables()).recipe
    assert recipe.seed == 3
    [stage] = recipe.stages
    assert stage.steps == selfplay.GAMES[game].steps
    assert stage.optim.betas[0] == (0.9 if game == "tic_tac_toe" else 0)
    assert recipe.seated == (frozenset() if variant == "present" else {"past"})


def test_self_play_of_a_single_seed_has_no_interval(tmp_path):
    known = {"present": {"30": {"final": 0.98}}}
    figures = selfplay.compared(selfplay.GAMES["tic_tac_toe"], [], known, tmp_path, 1)
    assert figures["variants"]["present"]["mean"] == [0.98, None, None]
    assert "0.980 (one seed), worst 0.980" in selfplay.told("tic_tac_toe", figures)


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name, of in sub_agents.WORLDS.items() for variant in of.variants]
)
def test_one_context_and_sub_agents_are_trained_alike_but_for_the_agent(name, variant):
    recipe, world = resolve(sub_agents.Job(name, variant, 2, 9000).tables()).recipe, sub_agents.WORLDS[name]
    [stage] = recipe.stages
    assert (recipe.seed, stage.early_stop.tokens, stage.optim.lr) == (2, 9000, world.lr)
    assert bool(sub_agent_models(recipe.agent)) == (variant == "sub_agents")
    if name == "long":
        assert recipe.backend.max_context == (sub_agents.ROOMY if variant == "roomy" else world.context)


async def test_a_black_dial_has_the_colour_of_its_lock():
    world = locks.LongLocks(locks=2, dials=3, words=2)
    play = world.make(world.tasks("train")[0])
    play.colours, play.own = [[0, locks.BLACK, 1], [locks.BLACK, 3, 2]], [3, 1]
    texts, rewards, success = [(await play.start()).messages[0].text], [], []
    for mark in ("up", "right", "down", "down", "right", "up"):  # the last is wrong
        step = await play.step("agent", Message(Role.ASSISTANT, mark))
        texts += [message.text for message in step.observation.messages] if step.observation else []
        rewards.append(step.rewards["agent"])
        success.append(step.success)
    assert [text[: text.index(".")] for text in texts] == [
        "Lock 1, white: red", "black", "green", "Lock 2, green: black", "white", "blue",
    ]  # fmt: skip
    assert rewards == pytest.approx([0, 0, 0.5, 0, 0, 1 / 3])
    assert success == [False] * 6


def test_every_variant_of_proposers_can_be_built_within_the_same_tokens(capsys, tmp_path):
    proposers.main(["--dry", "--folder", str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == len(proposers.VARIANTS) + 1
    variants = proposers.bakeoff_of(1234).variants
    assert all(one != other for one, other in itertools.combinations(variants.values(), 2))
    recipes = {name: resolve(Job(proposers.bakeoff_of(1234), name, 3).tables(tmp_path)).recipe for name in variants}
    assert {recipe.stages[0].early_stop.tokens for recipe in recipes.values()} == {1234}
    assert list(recipes["proposer"].stages[0].of_models()) == ["policy", "maker"]
    assert list(recipes["proposer_random"].stages[0].of_models()) == ["policy"]
    tests = [recipe.env.tasks("test") for recipe in recipes.values()]
    assert all(list(one[:30]) == list(tests[0][:30]) for one in tests), "the panel is the same"


def test_each_kind_of_process_is_killed_equally_often_in_an_order_of_the_seed():
    order = kills_ray.schedule(20, 3)
    assert {kind: order.count(kind) for kind in kills_ray.KINDS} == dict.fromkeys(kills_ray.KINDS, 4)
    assert order == kills_ray.schedule(20, 3)
    assert order != kills_ray.schedule(20, 4)


@pytest.mark.parametrize("script", ["sub_agents", "feedback"])
def test_a_script_finds_the_world_of_its_recipe_wherever_it_is_started(tmp_path, script):
    """As a person starts it: in another folder, and with nothing on the path but what is installed."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(bakeoff.HERE / f"{script}.py"), "--dry"]
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "can be built" in done.stdout
