"""Configs: every key is used or refused, in one sentence; what was resolved reads back the same."""

from pathlib import Path

import pytest

from sojourn import config
from sojourn.errors import ConfigError
from sojourn.recipe import load, resolve

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
        ("groups.width=0", "stages.train.groups.width = 0: expected a whole number of at least 1"),
        ("model.dtype='fp16'", "model.dtype = 'fp16'"),
        ("stages=3", "expected an array of tables"),
        ("agent.history='all'", "agent.history = 'all'"),
        ("nonsense", "expected key=value"),
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
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(write(tmp_path, "name = "))
    with pytest.raises(ConfigError, match="extends itself"):
        load(write(tmp_path, 'extends = "r.toml"\n' + TOY))


def test_the_resolved_table_reads_back_as_the_same_recipe(tmp_path):
    first = load(write(tmp_path), ["optim.lr=3e-6", "groups.max_lag=2", "model.lora.rank=4"])
    again = load(write(tmp_path, config.dump(first.table), "again.toml"))
    assert again.recipe == first.recipe
    assert again.table == first.table
    assert first.recipe.stages[0].optim.lr == 3e-6


def test_extends_lays_the_child_over_the_parent_and_remembers_origins(tmp_path):
    write(tmp_path, TOY + "rooms = 3\n[optim]\nlr = 1e-3\n", "parent.toml")
    child = write(tmp_path, 'extends = "parent.toml"\nseed = 7\n[optim]\nweight_decay = 0.1\n')
    tables = config.read(child, ["env.rooms=4"])
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


@pytest.mark.parametrize("override", ["optim.lr=3e-6", "optim={lr=3e-6}", "optim.lr=1e-3 "])
def test_a_key_that_every_stage_overrides_is_refused_on_the_command_line(tmp_path, override):
    if override.endswith(" "):  # it happens to be what one stage has already
        assert load(write(tmp_path, TOY + STAGES), [override]).recipe.stages[1].optim.lr == 2e-3
        return
    with pytest.raises(ConfigError, match=r"optim.lr = 3e-06 \(command line\) would change nothing.*stages.a.optim.lr"):
        load(write(tmp_path, TOY + STAGES), [override])


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
