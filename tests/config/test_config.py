"""Configs: every key is used or refused, in one sentence; what was resolved reads back the same."""

import os
from pathlib import Path

import pytest

from sojourn.backends.torch.backend import Torch
from sojourn.commands.arguments import build_world, world_and_table
from sojourn.config import toml
from sojourn.config.registry import as_toml
from sojourn.errors import ConfigError
from sojourn.train.resolve import load, resolve

TOY = """
name = "t"
losses = [{ name = "ppo" }]
[env]
name = "toy"
"""


def write(folder: Path, text: str = TOY, name: str = "r.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


OWN = """
from dataclasses import dataclass
@dataclass(frozen=True, kw_only=True)
class Own:
    left: int = 1
    right: int = 2
    history: str = "full"
    def seat(self, context): ...
class Bare:
    async def __call__(self, group): ...
class Rewardless:
    def __init__(self, seed: int): ...
    def go(self): ...
"""


@pytest.mark.parametrize(
    ("agent", "override", "sentence"),
    [
        (
            "left = 3, right = 4, history = 'page'",
            "agent.name=plain",
            "agent.name = 'plain' (command line) keeps the other keys of own_agent:Own, of which plain has no left, "
            "right: agent = {name = 'plain'} leaves out all keys of before",
        ),
        ("history = 'page'", "agent.name=plain", ""),
        ("left = 3", "agent={name='plain'}", ""),
        ("left = 3", "agent.lefft=3", "unknown key 'agent.lefft': did you mean 'left'?"),
    ],
)
def test_another_name_on_the_command_line_says_which_keys_it_does_not_take(
    tmp_path, monkeypatch, agent, override, sentence
):
    (tmp_path / "own_agent.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path, f"agent = {{ name = 'own_agent:Own', {agent} }}\n{TOY}")
    if not sentence:
        assert load(path, [override]).table["agent"]["name"] == "plain"
        return
    with pytest.raises(ConfigError) as error:
        load(path, [override])
    assert str(error.value) == sentence


ON_RAY = "backend = { name = 'ray', max_context = 640, patience_s = 9.0, samplers = { replicas = 2 } }\n"


def test_a_component_in_place_of_a_kind_of_it_leaves_out_what_that_adds(tmp_path):
    """Backend ray is a kind of backend torch: its processes are left out, and what both have stays."""
    on_ray = load(write(tmp_path, f"{ON_RAY}{TOY}"))
    back = load(write(tmp_path, f"{ON_RAY}{TOY}"), ["backend.name=torch"])
    assert type(back.recipe.backend) is Torch
    assert back.table["backend"] == {"name": "torch", **as_toml(Torch(max_context=640))}
    assert not {one for one in back.origins if one.startswith(("backend.samplers", "backend.patience_s"))}
    of_run = toml.Tables(on_ray.table)  # as in a run folder, which holds every default
    of_run.override("backend.name=torch")
    assert resolve(of_run).table == back.table


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["backend.name=torch", "backend.samplers.replicas=3"], "unknown key 'backend.samplers': use one of"),
        (["backend.name=ray", "backend.sampler.replicas=3"], "unknown key 'backend.sampler': did you mean 'samplers'?"),
    ],
)
def test_what_an_override_gives_is_never_left_out(tmp_path, overrides, sentence):
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, f"{ON_RAY if overrides[0].endswith('torch') else ''}{TOY}"), overrides)
    assert str(error.value).startswith(sentence)


def test_another_name_of_a_stages_loss_says_so_too(tmp_path):
    path = write(tmp_path, TOY.replace('{ name = "ppo" }', '{ name = "ppo", clip_high = 0.3 }'))
    with pytest.raises(
        ConfigError, match=r"losses\.0\.name = 'reinforce' .* reinforce has no clip_high: losses\.0 = {na"
    ):
        load(path, ["losses.0.name=reinforce"])


def test_what_is_no_component_says_what_to_write(tmp_path, monkeypatch):
    (tmp_path / "own_agent.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for override, sentence in (
        ("reward='own_agent:Bare'", "reward = 'own_agent:Bare': expected a table: write {name = 'own_agent:Bare'}"),
        (
            "reward.name='own_agent:Bare'",
            "reward: Bare is no dataclass, whose fields would be its keys: write @dataclass(",
        ),
        (
            "env.name='own_agent:Rewardless'",
            "own_agent:Rewardless has no method reward(): define it, returning None while the play goes on",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            load(write(tmp_path), [override])
        assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optim.lrr=1", "unknown key 'stages.train.optim.lrr': did you mean 'lr'?"),
        ("modle.name='x'", "unknown key 'modle': did you mean 'model'?"),
        ("optim.lr='high'", "stages.train.optim.lr = 'high': expected a number"),
        ("seed=1.5", "seed = 1.5: expected a whole number"),
        ("seed=true", "seed = True: expected a whole number"),
        ("env.name='tyo'", "unknown env 'tyo': did you mean 'toy'?"),
        ("env.name='nowhere:Env'", "no module 'nowhere' to import"),
        ("losses=[{name='ppo', clip=1}]", "unknown key 'stages.train.losses.0.clip'"),
        ("losses=[]", "no losses"),
        ("losses=[{name='kl'}]", "KL needs the stream 'ref_logprobs', which nothing provides"),
        ("streams=[{name='ref_logprobs'}]", "nothing uses the stream 'ref_logprobs'"),
        (
            "stages=[{name='a', losses=[{name='entropy'}], streams=[{name='entropy'}]}]",
            "nothing uses the stream 'entropy'",
        ),
        ("groups.width=0", "stages.train.groups.width = 0: expected a whole number of at least 1"),
        ("model.dtype='fp16'", "model.dtype = 'fp16'"),
        ("stages=3", "expected an array of tables"),
        ("agent.history='all'", "agent.history = 'all'"),
        ("nonsense", "expected key=value"),
        ("=1", "expected key=value"),
        (f"{'optim.' * 1000}lr=1", "expected key=value"),
        (f"seed={'[' * 5000}", "override 'seed': it is nested too deeply: expected at most 50"),
        (f"seed={'[' * 60}{']' * 60}", "override 'seed': it is nested too deeply: expected at most 50"),
        (f"seed={'9' * 5000}", "expected a whole number"),
        ("name.first='x'", "override 'name': it is the value 't', not a table"),
        ("seed=1\nsteps=2", "seed = '1\\nsteps=2': expected a whole number"),
        ("extends=parent.toml", "only a file extends another"),
        ("losses.².coef=1", "override 'losses.².coef': no '²' in the array; use one of 0, ppo"),
        ("losses.1.coef=1", "no '1' in the array"),
        ("exends='parent.toml'", "unknown key 'exends': did you mean 'extends'?"),
        ("stages=[]", "a recipe needs at least one stage"),
        ("stages=[3]", "expected an array of tables"),
        *((f"name='{name}'", "name = ") for name in ("", "a/b", "a b", "ä", "x" * 65)),
        (r'name="a\u0000b"', "expected 1 to 64 of the characters"),
        (r'record.folder="a\u0000b"', "expected the path of a folder"),
        *(
            (f"stages=[{{name='{name}'}}]", "stages.0.name = ")
            for name in ("", "a/b", "before", "evaluation", "evaluation-rl", "x" * 65)
        ),
        ("stages=[{name=3}]", "stages.0.name = 3: expected text"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path, override, sentence):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path), [override])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_malformed_files(tmp_path):
    with pytest.raises(ConfigError, match="no config file at"):
        load(tmp_path / "absent.toml")
    recipe = write(tmp_path, TOY)
    with pytest.raises(ConfigError, match=rf"expected a recipe or a run folder, such as {recipe}$"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(write(tmp_path, "name = "))
    with pytest.raises(ConfigError, match="extends itself"):
        load(write(tmp_path, 'extends = "r.toml"\n' + TOY))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("extends = 3\n", "extends = 3: expected text"),
        ("extends = ['r.toml']\n", "expected text"),
        ("extends = ''\n", "expected the path of a recipe"),
        ('extends = "a\\u0000b"\n', "expected the path of a recipe"),
        ("extends = 'absent'\n", "no config file at"),
        (f"deep = {'[' * 5000}", "nested too deeply"),
        (f"deep = {'[' * 60}{']' * 60}", "nested too deeply"),
        (f"{'a.' * 3000}a = 1", "nested too deeply"),
        (f"seed = {'9' * 5000}\n", "is not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text + TOY))
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["train", "Stage_2.b-c", "0", "re-evaluation", "beforehand", "x" * 64])
def test_names_that_a_folder_can_have_are_taken(tmp_path, name):
    resolved = load(write(tmp_path), [f"name='{name}'", f"stages=[{{name='{name}'}}]"])
    assert (resolved.recipe.name, resolved.recipe.stages[0].name) == (name, name)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["seed=1", "seed=2"], "seed"),
        (["optim={lr=1}", "optim.lr=2"], "optim.lr"),
        (["optim.lr=2", "optim={lr=1}"], "optim"),
        (["losses.0.coef=1", "losses.ppo.coef=2"], "losses.ppo.coef"),
        (["losses=[{name='ppo'}]", "losses.0.coef=2"], None),
        (["optim.lr=1", "optim.lrs=1"], "unknown key"),
    ],
)
def test_a_value_that_is_given_twice_is_refused(tmp_path, overrides, refused):
    if refused is None:
        assert load(write(tmp_path), overrides).recipe.stages[0].losses[0].coef == 2
        return
    with pytest.raises(ConfigError, match=refused) as caught:
        load(write(tmp_path), overrides)
    assert ("given twice" in str(caught.value)) == (refused != "unknown key")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbf" + TOY.encode())
    assert load(tmp_path / "r.toml").recipe.name == "t"


def test_a_recipe_is_read_once_so_it_may_be_a_pipe(tmp_path):
    read, write_end = os.pipe()
    with os.fdopen(write_end, "w") as pipe:
        pipe.write(TOY)
    assert load(Path(f"/dev/fd/{read}")).recipe.name == "t"
    os.close(read)


def test_extends_may_name_a_run_folder(tmp_path):
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", TOY + "rooms = 4\n", "config.toml")
    assert load(write(tmp_path, "extends = 'run'\nseed = 3\n")).recipe.env.rooms == 4


def test_a_long_line_of_parents_is_read_once_each(tmp_path, monkeypatch):
    resolved = []
    monkeypatch.setattr(Path, "resolve", lambda path: resolved.append(path) or path)
    write(tmp_path, TOY, "0.toml")
    for number in range(1, 60):
        write(tmp_path, f"extends = '{number - 1}.toml'\nseed = {number}\n", f"{number}.toml")
    assert load(tmp_path / "59.toml").recipe.seed == 59
    assert len(resolved) <= 3 * 60


def test_the_resolved_table_reads_back_as_the_same_recipe(tmp_path):
    first = load(write(tmp_path), ["optim.lr=3e-6", "groups.max_lag=2", "model.lora.rank=4"])
    again = load(write(tmp_path, toml.dump(first.table), "again.toml"))
    assert again.recipe == first.recipe
    assert again.table == first.table
    assert first.recipe.stages[0].optim.lr == 3e-6


def test_extends_lays_the_child_over_the_parent_and_remembers_origins(tmp_path):
    write(tmp_path, TOY + "rooms = 3\n[optim]\nlr = 1e-3\n", "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\nseed = 7\n[optim]\nweight_decay = 0.1\n')
    tables = toml.read(child, ["env.rooms=4"])
    resolved = resolve(tables)
    stage = resolved.recipe.stages[0]
    assert (stage.optim.lr, stage.optim.weight_decay, resolved.recipe.seed) == (1e-3, 0.1, 7)
    assert resolved.recipe.env.rooms == 4
    assert tables.origins["optim.lr"].endswith("parent.toml")
    assert tables.origins["seed"].endswith("r.toml")
    assert tables.origins["env.rooms"] == "command line"


def test_a_component_with_another_name_replaces_its_table(tmp_path):
    write(tmp_path, TOY + "[optim]\nlr = 1e-3\n[groups]\nname = 'experts'\ndistinct = 5\n", "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\n[groups]\nname = "slots"\nsize = 2\n')
    assert load(child).recipe.stages[0].groups.size == 2


STAGES = "[[stages]]\nname = 'a'\noptim = {lr = 1e-3}\n[[stages]]\nname = 'b'\noptim = {lr = 2e-3}\n"


@pytest.mark.parametrize("override", ["optim.lr=3e-6", "optim={lr=3e-6}"])
def test_a_key_that_every_stage_overrides_is_refused_on_the_command_line(tmp_path, override):
    told = r"optim.lr = 3e-06 \(command line\) would change nothing where every stage .*stages.a.optim.lr or stages.b"
    with pytest.raises(ConfigError, match=told):
        load(write(tmp_path, TOY + STAGES), [override])


def test_a_stage_named_as_the_evaluation_of_another_is_refused(tmp_path):
    """Its own evaluation would be taken for done, and the episodes of one would replace those of the other."""
    stages = "[[stages]]\nname = 'rl'\nsteps = 8\n[[stages]]\nname = 'rl-5'\nsteps = 8\n"
    path = write(tmp_path, TOY + stages)
    told = "a stage is called 'rl-5', as is the evaluation of the stage 'rl' after step 5: .* such as 'rl_5'"
    with pytest.raises(ConfigError, match=told):
        load(path, ["evaluation.every=5"])
    for harmless in ("evaluation.every=0", "evaluation.every=3", "evaluation.every=8"):
        load(path, [harmless])


@pytest.mark.parametrize(
    ("override", "stage"),
    [
        ("optim.lr=1e-3", "b"),  # what one stage has already
        ("minibatches=2", "b"),  # what one stage takes
        ("estimator.std=false", "b"),  # a component that one stage does not have
        ("losses.0.clip_low=0.1", "b"),
        ("losses=[{name='ppo'}]", "b"),
    ],
)
def test_an_override_that_does_not_reach_every_stage_is_refused(tmp_path, override, stage):
    stages = "[stages.estimator]\nname = 'rloo'\n[[stages.losses]]\nname = 'ppo'\n[[stages.losses]]\nname = 'entropy'\n"
    path = write(tmp_path, TOY + STAGES + "minibatches = 3\n" + stages)
    key = override.split("=")[0].replace(".0.clip_low", "")
    told = rf"{key} = .* \(command line\) would change nothing where the stage {stage} has its own: set stages.b.{key}$"
    with pytest.raises(ConfigError, match=told):
        load(path, [override])


def test_an_override_of_all_stages_leaves_those_that_are_overridden_by_name(tmp_path):
    path = write(tmp_path, TOY + "[[stages]]\nname = 'a'\n[[stages]]\nname = 'b'\noptim = {lr = 2e-3}\n")
    a, b = load(path, ["optim.lr=3e-6", "stages.b.optim.lr=4e-6"]).recipe.stages
    assert (a.optim.lr, b.optim.lr) == (3e-6, 4e-6)
    with pytest.raises(ConfigError, match=r"optim.lr = 3e-06 .* would change nothing where every stage"):
        load(path, ["optim.lr=3e-6", "stages.b.optim.lr=4e-6", "stages.a.optim.lr=5e-6"])


def test_a_key_of_a_child_that_the_stages_of_its_parent_keep_out_is_refused(tmp_path):
    write(tmp_path, TOY + STAGES, "parent.toml")
    child = write(tmp_path, "extends = 'parent.toml'\n[optim]\nlr = 5e-3\n")
    with pytest.raises(ConfigError, match=r"optim.lr = 0.005 \(.*r.toml\) would change nothing where every stage"):
        load(child)


def test_a_match_refuses_overrides_that_it_does_not_use(tmp_path):
    path = write(tmp_path)
    assert world_and_table(str(path), ["env.rooms=4"])[0].rooms == 4
    with pytest.raises(ConfigError, match=r"override 'seed=3': a match uses only \[env\] and \[rollout.limits\]"):
        world_and_table(str(path), ["seed=3"])


def test_a_name_is_that_of_a_file_or_of_an_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()  # the folder of a recipe
    assert build_world("toy", ["rooms=4"]).rooms == 4
    write(tmp_path)
    assert build_world("r.toml", ["env.rooms=3"]).rooms == 3
    with pytest.raises(ConfigError, match=r"no config file at 'toy/absent.toml'"):
        build_world("toy/absent.toml", [])


def test_the_origin_of_every_value_of_a_stage_is_known(tmp_path):
    shared = "losses = [{ name = 'ppo', clip_low = 0.1 }]\nname = 't'\n[env]\nname = 'toy'\n[optim]\nlr = 1e-3\n"
    own = (
        "[[stages]]\nname = 'a'\nlosses = [{ name = 'ppo' }]\n[[stages]]\nname = 'b'\noptim = { weight_decay = 1.0 }\n"
    )
    path = write(tmp_path, shared + own)
    resolved = load(path, ["stages.a.optim.lr=5e-3"])
    found = {leaf: resolved.origins.get(leaf) for leaf, _ in toml.leaves(resolved.table, "")}
    told = {leaf: origin and Path(origin).name for leaf, origin in found.items()}
    assert told["stages.0.optim.lr"] == "command line"
    assert told["stages.1.optim.lr"] == told["stages.1.optim.weight_decay"] == told["stages.0.name"] == "r.toml"
    assert told["stages.1.losses.0.clip_low"] == "r.toml"
    assert told["stages.0.losses.0.clip_low"] is None  # the stage's own loss says none: it is the default
    assert told["stages.0.optim.weight_decay"] is told["stages.0.steps"] is None


def test_a_key_that_every_stage_overrides_is_refused_in_one_file_but_not_where_a_later_one_overrides(tmp_path):
    with pytest.raises(ConfigError, match=r"minibatches = 3 .* would change nothing"):
        load(write(tmp_path, "minibatches = 3\n" + TOY + "[[stages]]\nname = 'a'\nminibatches = 2\n"))
    write(tmp_path, "minibatches = 3\n" + TOY, "parent.toml")
    child = write(tmp_path, "extends = 'parent.toml'\n[[stages]]\nname = 'a'\nminibatches = 2\n")
    assert load(child).recipe.stages[0].minibatches == 2


def test_stages_share_the_top_level_and_overrides_reach_them_by_name(tmp_path):
    text = TOY + "[optim]\nlr = 1e-3\n[[stages]]\nname = 'a'\n[[stages]]\nname = 'b'\n[stages.optim]\nlr = 2e-3\n"
    resolved = load(write(tmp_path, text), ["stages.b.steps=3", "stages.a.optim.lr=5e-3"])
    a, b = resolved.recipe.stages
    assert (a.optim.lr, b.optim.lr, a.steps, b.steps) == (5e-3, 2e-3, 10, 3)
    with pytest.raises(ConfigError, match="no 'c' in the array"):
        load(write(tmp_path, text), ["stages.c.steps=3"])


def test_a_child_changes_keys_of_its_parents_stages_by_their_names(tmp_path):
    stages = "[[stages]]\nname = 'a'\noptim = { lr = 1e-3 }\n[[stages]]\nname = 'b'\nlosses = [{ name = 'ppo' }]\n"
    write(tmp_path, TOY + stages, "parent.toml")
    own = "[stages.b]\nsteps = 3\noptim = { lr = 5e-3 }\n[stages.b.losses.ppo]\nclip_low = 0.1\n"
    resolved = load(write(tmp_path, "extends = 'parent.toml'\n" + own))
    a, b = resolved.recipe.stages
    assert (a.optim.lr, a.steps, b.optim.lr, b.steps, b.losses[0].clip_low) == (1e-3, 10, 5e-3, 3, 0.1)
    told = {path: Path(origin).name for path, origin in resolved.origins.items() if path.startswith("stages.")}
    assert (told["stages.0.optim.lr"], told["stages.1.optim.lr"]) == ("parent.toml", "r.toml")
    assert (told["stages.1.name"], told["stages.1.losses.0.clip_low"]) == ("parent.toml", "r.toml")
    assert load(write(tmp_path, "extends = 'parent.toml'\n" + own), ["stages.b.steps=4"]).recipe.stages[1].steps == 4
    with pytest.raises(ConfigError, match=r"r.toml: stages.c: no 'c' in the array; use one of 0, 1, a, b"):
        load(write(tmp_path, "extends = 'parent.toml'\n[stages.c]\nsteps = 3\n"))
    with pytest.raises(ConfigError, match=r"stages.b = 3: expected a table of its keys, such as stages.b.steps"):
        load(write(tmp_path, "extends = 'parent.toml'\nstages = { b = 3 }\n"))
