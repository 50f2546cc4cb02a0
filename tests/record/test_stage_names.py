from sojourn.record.stage_names import named, stages_in_words


def test_many_evaluations_are_counted_and_a_few_named():
    few = ["warmup", "rl", "evaluation-before", "evaluation-warmup", "evaluation-rl"]
    assert stages_in_words(few) == "warmup, rl, evaluation-before, evaluation-warmup, evaluation-rl"
    many = ["warmup", "rl", *(f"evaluation-rl-{n}" for n in range(10, 50, 10))]
    assert stages_in_words(many) == "warmup, rl and 4 evaluations (evaluation-rl-10 to evaluation-rl-40)"
    assert stages_in_words(many[2:]) == "4 evaluations (evaluation-rl-10 to evaluation-rl-40)"
    assert stages_in_words([]) == ""


def test_a_stage_has_its_name_in_a_key():
    config = {"stages": [{"name": "warmup"}, {"name": "rl"}, {}]}
    assert named("stages.1.optim.lr", config) == "stages.rl.optim.lr"
    assert named("stages.1", config) == "stages.rl"
    for key in ("stages.2.steps", "stages.7.steps", "stages.rl.steps", "env.stages.1", "critic.optim.lr"):
        assert named(key, config if key != "env.stages.1" else {}) == key
    assert named("env.stages.1", config) == "env.stages.1"
