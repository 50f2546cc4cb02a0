"""The descriptions of methods say what the components say, and the page of the documentation is made of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from spawned import sojourn

from sojourn import method_docs
from sojourn.commands.arguments import print_unverified
from sojourn.config.components import COMPONENTS
from sojourn.errors import ConfigError
from sojourn.method_docs import ARXIV
from sojourn.train.resolve import load

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
PRESETS = Path(__file__).parent.parent / "recipes" / "presets"
OWN = {"constant", "masked", "nll", "of_origin", "by_origin", "uniform", "mistake"}  # of nobody in particular

# What was read of the source of each method that names one of arXiv: when, and what. Those of 2026-11-23 were compared
# for this table. Those of 2026-11-22 were compared by who wrote the method, as LOG.md of that day, the docstring or a
# test of `tests/equivalence` says.
READ = {
    (
        "stream",
        "teacher",
    ): "2026-11-25: of 2602.12275 the abstract, the objective and the authors' guide to their code; "
    "of 2112.00861, 2209.15189 and 2606.30406 the abstracts",
    ("stream", "hindsight_hint"): "2026-11-29: the authors' code, openclaw_opd_api_server.py, and the combined loss "
    "as others quote it; of the text the abstract and accounts",
    ("reward", "next_state"): "2026-11-29: the authors' code, openclaw_api_server.py and openclaw_opd_api_server.py; "
    "of the text the abstract and accounts",
    ("loss", "distill"): "2026-11-25: TRL's GKD trainer, which mixes otherwise, Liger's JSD, and MiniLLM's code, "
    "losses.py; of both texts what others quote of them",
    ("loss", "dpo"): "2026-11-25: TRL's code; of the text what others quote of it",
    ("loss", "ipo"): "2026-11-25: TRL's code, and the text's abstract",
    ("loss", "simpo"): "2026-11-25: the code of TRL's CPO trainer; of the text what others quote of it",
    ("loss", "bradley_terry"): "2026-11-29: code of several reward trainers; of the text its loss, as others quote it",
    ("loss", "kto"): "2026-11-25: the authors' code, KTOTrainer of HALOs; of the text what others quote of it",
    ("loss", "orpo"): "2026-11-25: the authors' code, ORPOTrainer; of the text its objective, as others quote it",
    ("loss", "nca"): "2026-11-25: the authors' code, nca_loss for rewards and dpo_loss for pairs",
    ("stream", "reference_kl"): "2026-11-25: the authors' code, KTOTrainer of HALOs",
    ("stream", "turn_pairs"): (
        "2026-11-25: of Step-DPO the authors' code, stepdpo_trainer.py; of Agent Q and of Zhai et al. the abstracts; "
        "2026-11-26: the text of AutoCoA, sections 3.2 and 3.3"
    ),
    ("estimator", "grpo"): "2026-11-22: verl's code, with which it agrees",
    ("estimator", "rloo"): "2026-11-22: verl's code, with which it agrees; 2026-11-25: the text, section 2.3",
    ("estimator", "opo"): "2026-11-23: verl's code, compute_opo_outcome_advantage",
    ("estimator", "gigpo"): "2026-11-22: the authors' code",
    ("estimator", "srgpo"): "2026-11-22: the authors' code",
    ("estimator", "ui_s1"): "2026-11-25: the authors' code, core_uis1.py, with which it agrees, and the abstract",
    ("estimator", "eapo"): "2026-11-22: the text",
    ("estimator", "mgrpo"): "2026-11-22: the text",
    ("estimator", "mars"): "2026-11-22: the authors' code",
    ("estimator", "cosearch"): "2026-11-23: the text, sections 3.3-3.4, eq. 4-6 and appendix C, and the authors' code; "
    "2026-11-29: of that co_search_tool.py, answer_match_reward.py, score_assign_functions.py, uid_group_functions.py",
    ("estimator", "igpo"): "2026-11-22: the authors' code; of DR-Venus what its preset cites",
    ("estimator", "rae"): "2026-11-22: the text",
    ("estimator", "reinforce_pp"): "2026-11-22: OpenRLHF's and verl's code, with which it agrees",
    ("estimator", "difficulty"): "2026-11-25: the text, section 3.3 and appendix C.3, and the authors' code",
    ("estimator", "empg"): "2026-11-25: the code of the text's appendix, eq. 7-12, as two others reprint it",
    ("estimator", "aepo"): "2026-11-22: the authors' code",
    ("estimator", "gae"): "2026-11-22: verl's and torchrl's code, with which it agrees",
    ("estimator", "turn_gae"): "2026-11-22: the authors' codes",
    ("estimator", "bilevel_gae"): "2026-11-22: the authors' code",
    ("estimator", "vsc"): "2026-11-23: the authors' code, trainer.py and offpolicy_train_loop.py",
    ("estimator", "digirl"): "2026-11-25: the authors' code, trainer.py, critic.py and offpolicy_train_loop.py",
    ("estimator", "best_of_n"): "2026-11-25: the authors' code, the trainer",
    ("estimator", "awr"): "2026-11-25: both authors' codes, awr_agent.py, and critic.py and actor.py of IQL; "
    "2026-11-26: FamO2O's, family_actor.py",
    (
        "groups",
        "with_balances",
    ): "2026-11-26: the abstract, and the authors' code, family_actor.py and family_learner.py",
    ("estimator", "bcoder"): "2026-11-23: the text, sections 3-4 and appendices A, G and H",
    ("estimator", "positive"): "2026-11-22: the authors' code",
    ("estimator", "normalised"): "2026-11-25: the authors' code, ppo_trainer.py and RunningMoments",
    ("estimator", "process"): "2026-11-25: both authors' codes, rl_data_org.py and a3c.py",
    ("estimator", "oprl"): "2026-11-23: the text of version 1, section 3.1, eq. 1-6",
    ("estimator", "archer"): "2026-11-22: the authors' code",
    ("estimator", "kl_reward"): "2026-11-25: the text, section 3.4, and the code of lm-human-preferences",
    ("estimator", "whitened"): "2026-11-22: verl's code, with which it agrees",
    ("loss", "ppo"): "2026-11-22: verl's and Liger's code, with which it agrees; of DAPO the text, eq. 10",
    ("loss", "cispo"): "2026-11-22: parts of the text, and verl's and Liger's code, with which it agrees",
    ("loss", "gspo"): "2026-11-22: the text, and verl's and Liger's code, with which it agrees",
    ("loss", "sapo"): "2026-11-23: verl's code, compute_policy_loss_sapo",
    ("loss", "clip_cov"): "2026-11-22: parts of the text, and the authors' code",
    ("loss", "kl_cov"): "2026-11-22: parts of the text, and the authors' code",
    ("loss", "aepo"): "2026-11-25: the text's objective, and the authors' code as forks have it",
    ("loss", "m2po"): "2026-11-22: the authors' code",
    ("loss", "webrl"): "2026-11-26: the authors' code, actor_loss of trainer.py",
    ("loss", "importance"): "2026-11-22: verl's code, with which it agrees",
    ("loss", "weighted"): "2026-11-26: the abstract, and the authors' code, sim2real_sac.py",
    ("loss", "kl"): "2026-11-22: verl's code, with which it agrees",
    ("loss", "entropy"): "2026-11-25: section 4 as others quote it",
    ("loss", "epo"): "2026-11-22: the text of version 2, and the authors' code",
    ("loss", "bcoder"): "2026-11-23: the text, sections 3-4 and appendices A, G and H",
    ("loss", "value"): "2026-11-22: verl's code, with which it agrees",
    ("stream", "policy_logprobs"): "2026-11-25: the text of section 3, and the authors' code, recompute_logp",
    ("stream", "progress"): "2026-11-25: the authors' code, train_our_progress_model.py",
    ("stream", "implicit_reward"): (
        "2026-11-23: of OPRL the text of version 1, eq. 1-2; 2026-11-25: of PRIME the text and the code, dp_prime.py"
    ),
    ("stream", "action_values"): "2026-11-25: the authors' code, train.py, agent.py and the data's preparation",
    ("stream", "utterance_advantage"): (
        "2026-11-22: the authors' code; 2026-11-25: of RO2O the authors' code, its Q-ensemble and losses; "
        "of CQL the authors' code for discrete actions, quantile_agent.py; "
        "2026-11-26: of MEX the abstract and the authors' code, IO.py"
    ),
    ("stream", "instruction_value"): "2026-11-25: the authors' code, trainer.py, critic.py and offpolicy_train_loop.py",
    ("stream", "relatedness"): "2026-11-25: the authors' code, environment.py",
    (
        "stream",
        "feedback",
    ): "2026-11-25 and 2026-11-29: the authors' code, learner.py, llm_annotator.py, reward_model.py",
    ("stream", "curiosity"): "2026-11-25: the text, section 2.2, and the authors' code, model.py",
    ("stream", "dynamics_ratio"): "2026-11-26: the abstract, and the authors' code, sim2real_sac.py and Weight_net.py",
    ("stream", "information_gain"): "2026-11-22: the authors' code; of DR-Venus what its preset cites",
    ("filter", "best"): "2026-11-26: the abstract, and the code, workflow_gen.py, workflow_convert.py, train.py",
    ("filter", "roc"): "2026-11-22: the text, and the authors' code",
    ("reward", "composite"): "2026-11-22: the authors' code",
    ("reward", "overlong"): "2026-11-22: the text",
    ("reward", "of_seat"): "2026-11-29: of Self-RedTeam the abstract, accounts, and the authors' code",
    ("curriculum", "learnability"): "2026-11-25: the abstract, and the authors' code, minigrid_sfl.py",
    ("curriculum", "plr"): "2026-11-25: the authors' code, level_sampler.py; of MaxMC Meta's code, ued_scores.py",
    ("curriculum", "accel"): "2026-11-25: the abstract, and the authors' code, adversarial_runner.py, level_sampler.py "
    "and the adversarial environment of their walker; of XLand the abstract and accounts by others",
    ("curriculum", "bandit"): "2026-11-25: the abstract, and the authors' notebook, simulate_curriculum.ipynb",
    ("curriculum", "cost_aware"): "2026-11-25: the abstract, and two codes by others, which divide by time",
    ("curriculum", "mopps"): "2026-11-25: the abstract, and the authors' code, mopps.py",
    ("curriculum", "mpts"): "2026-11-25: the abstract, and the authors' code, trainer_risklearner.py",
    ("groups", "slots"): "2026-11-22: of DAPO the text, section 3.2; of ScalingInter-RL the authors' code",
    ("groups", "folder"): "2026-11-25: accounts of DR-Venus by others, as its docstring says",
    ("groups", "dagger"): "2026-11-25: algorithm 3.1, as others reprint it",
    ("groups", "semi_online"): "2026-11-25: the abstract, and the authors' code, core_uis1.py",
    ("groups", "success_replay"): "2026-11-25: the abstract, and the authors' code",
    ("groups", "failure_restarts"): "2026-11-25: the abstract, and the authors' code",
    ("groups", "spliced"): "2026-11-27: the abstract, and the authors' code, path_collection.py",
    (
        "groups",
        "proposals",
    ): "2026-11-29: the abstracts, and both authors' code: reward_managers.py, ssp_ray_trainer.py; of SSR the text, "
    "sections 2 and 3 and appendices A to C",
    ("groups", "hindsight"): "2026-11-25: the abstract, accounts by others, and the authors' code",
    ("estimator", "self_imitation"): "2026-11-25: the abstract and the authors' code, self_imitation.py",
    (
        "estimator",
        "tree_values",
    ): "2026-11-27: the authors' codes: of VinePPO math_episode_generator_with_mc_advantages.py, of TreeRL "
    "tree_node.py and parallel_mcts.py, of AT2PO vllm_rollout_with_tools_tree_offline.py and its script",
    ("estimator", "tree_grpo"): "2026-11-27: the authors' code, ray_trainer_ts.py and core_algos.py",
    (
        "branching",
        "entropy",
    ): "2026-11-27: the authors' codes, vllm_rollout_with_tools.py, that of AEPO as AT2PO's has it",
    ("branching", "random_turns"): "2026-11-27: the authors' code, tree_node.py and generation_ts.py",
    ("branching", "uncertain_turns"): "2026-11-27: the authors' code, vllm_rollout_with_tools_tree_offline.py",
    ("branching", "balanced_entropy"): "2026-11-28: an account, and the code as AT2PO's authors have it",
    ("branching", "uncertain_states"): "2026-11-28: the abstracts",
    ("branching", "expert_decisions"): "2026-11-28: the abstract of CSO, accounts of ATLaS",
    ("stream", "turn_success"): "2026-11-27: the abstract; of the text eq. 3-4 and figure 2, as others quote them",
}
UNREAD = {
    ("estimator", "aem"),
    ("estimator", "dyna_grpo"),
    ("estimator", "foresight"),
    ("estimator", "regret_loss"),
    ("estimator", "stratified"),
    ("loss", "binary_cross_entropy"),
    ("loss", "positive_nll"),
    ("loss", "st_ppo"),
    ("stream", "latent_pairs"),
    ("stream", "milestones"),
    ("reward", "tool_use"),
    ("reward", "verified"),
    ("reward", "judge"),
    ("curriculum", "solvable"),
    ("curriculum", "deficits"),
    ("curriculum", "exp3s"),
    ("curriculum", "learning_progress"),
    ("groups", "adaptive_slots"),
    ("groups", "guidance"),
    ("groups", "reasoned"),
    ("groups", "searched"),
    ("groups", "with_returns"),
}


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text() == method_docs.markdown(), "make it again: sojourn methods --markdown > docs/methods.md"


@pytest.mark.parametrize("kind", ["estimator", "loss"])
def test_every_method_says_what_it_is_and_where_it_is_from(kind):
    found = method_docs.methods(kind)
    assert [method.name for method in found] == list(COMPONENTS[kind])
    for method in found:
        assert 20 <= len(method.summary) <= 250 or method.name in {"reinforce", "nll"}, method
        assert "(" not in method.summary or method.summary.count("(") == method.summary.count(")"), method
        assert method.sources or method.name in OWN, method
        assert method.goes_with


def test_what_methods_need_and_go_with():
    known = {(method.kind, method.name): method for method in method_docs.methods()}
    assert "worlds that offer `state_key()`" in known["estimator", "gigpo"].goes_with
    assert known["estimator", "aem"].needs == ("entropy",)
    assert "any estimator, as its base" in known["estimator", "aem"].goes_with
    assert "its memory" in known["estimator", "rae"].goes_with
    assert known["loss", "reinforce"].goes_with == "samples of the current weights only"
    assert known["loss", "entropy"].needs == ("the entropy of its own forward pass",)
    assert known["loss", "value"].needs == ("a critic", "an estimator that gives the targets of a critic", "values")
    assert known["stream", "values"].needs == ("a critic",)
    assert known["estimator", "gae"].goes_with == "gives the targets of a critic"
    assert known["stream", "progress"].goes_with == "is trained beside the policy; resumes with its memory"
    assert "worlds that make tasks of data" in known["curriculum", "accel"].goes_with
    assert known["groups", "dagger"].goes_with == "worlds that offer `expert()`"
    assert known["groups", "guidance"].goes_with == "any source, as its base"
    assert known["loss", "ppo"].sources[0] == "Schulman et al. 2017, arXiv:1707.06347, eq. 7"


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"'estimators' is no kind of method: .*estimator"):
        method_docs.methods("estimators")


def test_every_method_of_arxiv_was_read_or_says_that_it_was_not():
    named = {(m.kind, m.name): m for m in method_docs.methods() if any("arXiv" in source for source in m.sources)}
    assert {key for key, method in named.items() if method.unverified} == UNREAD
    assert set(named) - UNREAD == set(READ), "say in READ what was read of it, or mark the class `unverified`"


def test_no_docstring_says_that_its_source_was_not_read_without_the_mark():
    for method in method_docs.methods():
        said = " ".join(method.text.split())
        if any(words in said for words in ("was not to be had", "were not to be had", "accounts of the paper")):
            assert method.unverified or (method.kind, method.name) == ("estimator", "mars"), method.name


def test_the_menu_shows_what_is_unverified():
    [aem] = method_docs.of_name("aem")
    assert aem.origin == f"{aem.sources[0]}; unverified: {aem.unverified}"
    assert f"*unverified*: {aem.unverified} |" in method_docs.markdown()
    [grpo] = method_docs.of_name("grpo")
    assert grpo.unverified == ""
    assert "unverified" not in grpo.origin


def test_a_name_shows_its_methods_whole():
    assert [(method.kind, method.name) for method in method_docs.of_name("aepo")] == [
        ("estimator", "aepo"),
        ("loss", "aepo"),
    ]
    with pytest.raises(ConfigError, match=r"'stratifed' is neither .*did you mean 'stratified'"):
        method_docs.of_name("stratifed")
    shown = _sojourn("methods", "stratified").stdout
    assert "A stratum of one" in shown
    assert method_docs.of_name("stratified")[0].unverified in shown
    assert "unverified: an account of the paper" in " ".join(_sojourn("methods", "estimator").stdout.split())


WITHOUT_TORCH = """
import importlib.abc, json, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Hidden())
from sojourn import method_docs

print(json.dumps([[m.kind, m.name, m.summary, m.sources, m.goes_with] for m in method_docs.methods()]))
"""


def test_without_torch_all_methods_are_listed_with_their_sources():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    known = method_docs.methods()
    assert [each[:4] for each in found] == [[m.kind, m.name, m.summary, list(m.sources)] for m in known]
    assert {m.goes_with for m in known}.isdisjoint({method_docs.UNKNOWN})
    assert {each[1] for each in found if each[4] == method_docs.UNKNOWN} > {"ppo", "gspo", "nll"}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_of_methods_cuts_nothing(width):
    shown = _sojourn("methods", width=width).stdout
    assert "…" not in shown
    wanted = {number for m in method_docs.methods() for source in m.sources for number in ARXIV.findall(source)}
    assert wanted <= set(ARXIV.findall(shown))


def test_a_recipe_says_which_of_its_methods_are_unverified(capsys):
    """Wherever they stand: as a base, in rewards and streams, and as the preset itself."""
    told = {
        name: list(method_docs.unverified(load(PRESETS / f"{name}.toml").recipe)) for name in ("aem", "mira", "gui_owl")
    }
    [aem] = method_docs.of_name("aem")
    assert told["aem"] == [f"the estimator 'aem' is unverified: {aem.unverified}"]
    assert told["mira"][0].startswith("the stream 'milestones' is unverified: ")
    assert told["gui_owl"][0].startswith("the recipe 'gui_owl' is unverified: ")
    print_unverified(load(PRESETS / "grpo.toml").recipe)
    assert capsys.readouterr().err == ""


def test_a_dry_run_begins_with_what_is_unverified():
    done = _sojourn("train", str(PRESETS / "deeptravel.toml"), "--dry")
    told = [line for line in done.stderr.splitlines() if "unverified" in line]
    assert len(told) == 1
    assert told[0].startswith("note: the reward 'verified' is unverified: the paper's abstract")


def test_the_presets_page_lists_those_that_are_unverified():
    page = (PRESETS / "README.md").read_text()
    for path in sorted(PRESETS.glob("*.toml")):
        recipe = load(path).recipe
        assert bool(list(method_docs.unverified(recipe))) == (f"[`{path.stem}`]({path.name})" in page), path.stem


def _sojourn(*args: str, width: int = 500) -> subprocess.CompletedProcess[str]:
    done = sojourn(Path(__file__).parent, *args, environment={"COLUMNS": str(width)})
    assert done.returncode == 0, done.stderr
    return done
