"""Estimators that look into episodes, against small examples worked by hand from their equations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import by_token, by_turn, group, of_episodes, paid, stream, trajectory

from sojourn.batch.weigh import weigh
from sojourn.credit.gigpo import GiGPO, similar_observations
from sojourn.credit.grpo import GRPO
from sojourn.credit.opo import OPO
from sojourn.credit.papers.cosearch import CoSearch
from sojourn.credit.papers.eapo import EAPO
from sojourn.credit.papers.mars import MARS
from sojourn.credit.papers.mgrpo import MGRPO
from sojourn.credit.papers.rae import RAE
from sojourn.credit.papers.srgpo import SRGPO
from sojourn.credit.papers.stratified import Stratified
from sojourn.credit.papers.ui_s1 import UIS1
from sojourn.credit.reinforce_pp import ReinforcePP
from sojourn.credit.rloo import RLOO
from sojourn.train.resolve import load

PRESETS = Path(__file__).parents[2] / "recipes" / "presets"


def flat(values):
    return [x for some in values for x in some]


def test_opo_by_hand():
    made = group(*(trajectory([length]) for length in (100, 300, 200, 150)))
    [credit] = OPO()([made], [paid([1], [0], [0], [1])], {})
    assert flat(by_turn(credit)) == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3])
    [credit] = OPO()([made], [paid([1], [1], [1], [1])], {})
    assert flat(by_turn(credit)) == [0] * 4


def visits():
    one, other = trajectory([2, 3, 1], states=["a", "b", "c"]), trajectory([1, 1, 2], states=["a", "b", "a"])
    return group(one, other), paid([0, 0, 10], [0, 0, 0])


def test_gigpo_by_hand():
    made, scores = visits()
    [credit] = GiGPO(scale_by_std=False)([made], [scores], {})
    assert by_turn(credit)[0] == pytest.approx([11.016667, 9.75, 5])
    assert by_turn(credit)[1] == pytest.approx([-8.008333, -9.75, -8.008333])
    [credit] = GiGPO(epsilon=0.0)([made], [scores], {})  # state a: 9.025, 0, 0, of deviation 9.025 sqrt(2) / 3
    assert by_turn(credit)[0] == pytest.approx([1 + 2**0.5, 2, 1])
    assert by_turn(credit)[1] == pytest.approx([-1 - 0.5**0.5, -2, -1 - 0.5**0.5])
    [credit] = GiGPO(scale_by_std=False, step_weight=0.0)([made], [scores], {})
    assert by_turn(credit)[0] == pytest.approx([5, 5, 5])


def test_gigpo_by_likeness():
    texts = [["abcd", "x"], ["bcde", "y"]]
    made = group(*(trajectory([1, 1], observed=shown) for shown in texts))
    scores = paid([0, 1], [0, 0])
    [near] = GiGPO(scale_by_std=False, similarity=0.75, discount=1.0)([made], [scores], {})
    assert by_turn(near) == [pytest.approx([1, 0.5]), pytest.approx([-1, -0.5])]
    [far] = GiGPO(scale_by_std=False, similarity=0.9, discount=1.0)([made], [scores], {})
    assert by_turn(far) == [pytest.approx([0.5, 0.5]), pytest.approx([-0.5, -0.5])]
    assert GiGPO().env_needs == {"state_key"}
    assert not GiGPO(similarity=0.9).env_needs


def test_states_that_are_not_known_are_not_one_state():
    made = group(trajectory([1, 1]), trajectory([1, 1]))
    scores = paid([0, 1], [0, 0])
    [credit], [plain] = GiGPO()([made], [scores], {}), GRPO()([made], [scores], {})
    assert by_turn(credit) == by_turn(plain)


def test_a_chain_of_like_observations_is_one_state():
    chain = trajectory([1] * 4, observed=["aaaa", "aabb", "zzzz", "bbbb"]).turns
    one, two, other, three = similar_observations(chain, 0.5)  # the first and the last have nothing in common
    assert one == two == three != other
    assert similar_observations(chain[::-1], 0.5)[0] == similar_observations(chain[::-1], 0.5)[-1]


def test_a_stratum_has_its_own_baseline():
    """Sizes 2, 3 and 1, by numbers of turns."""
    rewards, turns = [1.0, 0.4, 0.6, 0.8, 0.1, 0.5], [1, 1, 2, 2, 2, 3]
    made = group(*(trajectory([1] * n) for n in turns))
    scores = paid(*([0] * (n - 1) + [r] for n, r in zip(turns, rewards, strict=True)))
    expected = [1.1022, -0.9162, 0.2950, 0.9780, -1.4125, -0.0465]
    [credit] = Stratified(epsilon=0.0)([made], [scores], {})
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx(expected, abs=1e-4)
    searches = [[{"searches": 1.0}] + [{}] * (n - 1) if n < 3 else [{}] * n for n in turns]  # 1, 1, 1, 1, 1, none
    made = group(*(trajectory([1] * n, infos=infos) for n, infos in zip(turns, searches, strict=True)))
    [credit] = Stratified(info_key="searches", blend=1.0, epsilon=0.0)([made], [scores], {})
    first = np.array(rewards[:5])
    assert [t[0] for t in by_turn(credit)] == pytest.approx([*(first - first.mean()) / first.std(), 0], abs=1e-5)


def test_eapo_by_hand():
    made = group(trajectory([1, 1]), trajectory([1, 1, 1]))
    [credit] = EAPO(discount=0.9, epsilon=0.0)([made], [paid([0, 1], [0, 0, 0])], {})
    assert by_turn(credit)[0] == pytest.approx([1.1147, 1.3291], abs=1e-4)
    assert by_turn(credit)[1] == pytest.approx([-0.8146] * 3, abs=1e-4)


def test_mgrpo_by_hand():
    """Two episodes: of the called agents, two in the first, one in the second, which counts for as much."""
    main, called = trajectory([1]), trajectory([2], agent="searcher")
    made = of_episodes([[main, called, called], [main, called]])
    scores = paid([1], [0.5], [0.2], [0], [0.4])
    [credit] = MGRPO(epsilon=0.0)([made], [scores], {})
    assert flat(by_turn(credit)) == pytest.approx([1, 1.5882, 0.1222, -1, -0.8552], abs=1e-4)


def test_a_main_agent_that_is_not_trained_is_paid_by_the_world():
    """Called agents have a part of its return all the same."""
    called = trajectory([2], agent="searcher")
    for trainable in (True, False):
        mains = [replace(trajectory([1]), trainable=trainable, unacted_reward=reward) for reward in (0.0, 1.0)]
        mains = [replace(one, turns=(replace(one.turns[0], reward=one.unacted_reward),)) for one in mains]
        made = of_episodes([[one, called] for one in mains])
        scores = paid(*(([0], [0], [1], [0]) if trainable else ([0], [0])))
        [credit] = MGRPO(epsilon=0.0)([made], [scores], {})
        assert [flat(by_turn(credit))[n] for n in ((1, 3) if trainable else (0, 1))] == pytest.approx([-1, 1])


def test_a_called_agent_counts_for_as_much_however_often_it_was_called():
    """Its trajectories of 2 tokens each share the weight that the main agent's one has, once it is called at all."""
    aggregate = load(PRESETS / "mgrpo.toml").recipe.stages[0].aggregate
    main, called = trajectory([1]), trajectory([2], agent="searcher")
    for calls in (1, 2, 7):
        first, second, third = [main, *[called] * calls], [called, main], [main]
        [weights] = weigh([of_episodes([first, second, third])], aggregate)
        totals = [float(sum(turn.sum() for turn in one)) for one in weights]
        assert totals == pytest.approx([0.2, *[0.2 / calls] * calls, 0.2, 0.2, 0.2])
    nothing: list[float] = [float(turn.sum()) for one in weigh([group(trajectory([0]))], aggregate)[0] for turn in one]
    assert nothing == [0]


def test_seats_are_compared_with_their_own_kind():
    main, called = trajectory([1]), trajectory([2], agent="searcher")
    [credit] = RLOO()([of_episodes([[main, called], [main, called]])], [paid([1], [7], [0], [3])], {})
    assert flat(by_turn(credit)) == pytest.approx([1, 4, -1, -4])


def test_mars_by_hand():
    one, other = (trajectory([1] * n, agent="first") for n in (3, 2))
    against = trajectory([1], agent="second"), trajectory([1, 1], agent="second")
    groups = [of_episodes([[one, against[0]]]), of_episodes([[other, against[1]]], slot=1)]
    scores = [paid([0.1, 0, 1], [-1]), paid([0, -1], [0, 1])]
    first, second = (by_turn(credit) for credit in MARS()(groups, scores, {}))  # 1.1, 1, 1, -1, -1 and -1, 1, 1
    assert first == [pytest.approx([0.7333, 0.6333, 0.6333], abs=1e-4), [-1]]
    assert second == [pytest.approx([-1.3667] * 2, abs=1e-4), [1, 1]]
    alone = [by_turn(credit) for credit in MARS(baseline="group")(groups, scores, {})]
    assert alone[0] == [pytest.approx([0.05, -0.05, -0.05]), [0]]


def test_marshal_is_of_deviation_one_over_the_tokens_of_all_seats():
    """Returns of 1 and -1, each one value however often it comes; the win has 3 tokens of 4."""
    estimator = load(PRESETS / "marshal.toml").recipe.stages[0].estimator
    made = of_episodes([[trajectory([3], agent="first")], [trajectory([1], agent="first")]])
    [credit] = estimator([made], [paid([1], [-1])], {})
    assert flat(by_turn(credit)) == pytest.approx([0.5 / 0.75**0.5, -1.5 / 0.75**0.5], abs=1e-4)


def test_cosearch_by_hand():
    """Three ask nearly the same, of which one is answered; a fourth alone asks something else; then all answer."""
    texts = ["who wrote the old book", "who wrote the old book now", "who wrote the old book please", "weather"]
    made = group(*(trajectory([1, 1], messages=[text, f"answer {n}"]) for n, text in enumerate(texts)))
    scores = paid([1, 1], [0, 0], [0.25, 1], [1, 0])
    [credit] = CoSearch(epsilon=0.0)([made], [scores], {})
    worth = np.array([2, 0, 0.25])  # the first is above the gate, so that it gets what its answer did
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx([*(worth - worth.mean()) / worth.std(), 0])
    assert [turns[1] for turns in by_turn(credit)] == [0] * 4  # no three answers share four words of five
    [credit] = CoSearch(epsilon=0.0, similarity=1.0)([made], [scores], {})
    assert flat(by_turn(credit)) == [0] * 8


def test_cosearch_pays_the_answer_alone_where_no_document_held_it():
    """Equation 6: among calls that found nothing to rank, r_rank = r_main, and they are compared among themselves."""
    infos = [[{"answerable": 0.0}, {}]] * 3 + [[{"answerable": 1.0}, {}]] * 3
    made = group(
        *(trajectory([1, 1], messages=["who wrote it", f"it was {n}"], infos=info) for n, info in enumerate(infos))
    )
    scores = paid([0, 1], [0, 0], [-0.2, 1], [0.25, 1], [0.75, 1], [1, 0])
    [credit] = CoSearch(epsilon=0.0)([made], [scores], {})
    hidden, ranked = np.array([1, 0, -0.2]), np.array([0.25, 0.75 + 1, 1])
    wanted = [*(hidden - hidden.mean()) / hidden.std(), *(ranked - ranked.mean()) / ranked.std()]
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx(wanted, abs=1e-6)


def test_cosearch_compares_words_without_case_punctuation_and_articles():
    texts = ["Who wrote the Iliad?", "who wrote Iliad", "who wrote an 'iliad'"]
    made = group(*(trajectory([1, 1], messages=[text, f"answer {n}"]) for n, text in enumerate(texts)))
    [credit] = CoSearch(epsilon=0.0, similarity=1.0)([made], [paid([1, 0], [0, 0], [0, 0])], {})
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)], abs=1e-6)


def searched(asked):
    """An episode of a searcher, who asks and then answers, and of a ranker, who acts after each question."""
    moves = [{"move": float(2 * n)} for n in range(len(asked) + 1)]
    texts = [*(f"search[{text}]" for text in asked), "answer[it]"]
    between = [{"move": float(2 * n + 1)} for n in range(len(asked))]
    ranker = trajectory([1] * len(asked), infos=between, messages=["[2] > [1]"] * len(asked), agent="ranker")
    return [trajectory([1] * len(texts), infos=moves, messages=texts), ranker]


def test_a_ranker_is_compared_by_what_it_was_asked_and_gets_the_callers_outcome():
    """CoSearch, eq. 5: r_rank, plus r_main where r_rank is above the threshold; groups are of similar sub-queries."""
    asked = [["who wrote the old book"], ["weather", "who wrote the old book"], ["Who wrote old book?"]]
    made = of_episodes([searched(texts) for texts in asked])
    scores = paid([0, 1], [1], [0, 0, 0.5], [0.9, 1], [0, 0], [0.25])
    [credit] = CoSearch(caller="agent", epsilon=0.0)([made], [scores], {})
    advantages = by_turn(credit)
    worth = np.array([1 + 1, 1 + 0.5, 0.25])
    wanted = (worth - worth.mean()) / worth.std()
    assert [advantages[1][0], advantages[3][1], advantages[5][0]] == pytest.approx(list(wanted))
    assert advantages[3][0] == 0, "nobody else asked for the weather"
    callers = np.array([1, 0.5, 0])
    assert [advantages[n][0] for n in (0, 2, 4)] == pytest.approx(list((callers - callers.mean()) / callers.std()))


def test_a_ranker_gets_the_outcome_of_a_caller_that_is_not_trained():
    made = of_episodes([searched(["who wrote it"]) for _ in range(3)])
    rewards = (1.0, 0.0, 0.0)
    episodes = []
    for episode, reward in zip(made.episodes, rewards, strict=True):
        caller, ranker = episode.trajectories
        turns = (*caller.turns[:-1], replace(caller.turns[-1], reward=reward))
        episodes.append(replace(episode, trajectories=(replace(caller, turns=turns, trainable=False), ranker)))
    made = replace(made, episodes=tuple(episodes))
    [credit] = CoSearch(caller="agent", epsilon=0.0)([made], [paid([1], [1], [1])], {})
    assert flat(by_turn(credit)) == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)], abs=1e-6)
    assert CoSearch(caller="agent").reads_all_models
    assert not CoSearch().reads_all_models


def test_srgpo_by_hand():
    made = group(trajectory([1, 1]), trajectory([1, 1]))
    [credit] = SRGPO(epsilon=0.0)([made], [paid([1, 0], [1, 1])], {})
    assert by_turn(credit) == [pytest.approx([-0.4571, -1.4571], abs=1e-4), pytest.approx([0.9571, 0.9571], abs=1e-4)]
    infos = [{"nearer": 1.0}, {"nearer": 0.0}]
    made = group(trajectory([1, 1], infos=infos), trajectory([1, 1], infos=[{"nearer": 1.0}] * 2))
    [credit] = SRGPO(info_key="nearer", epsilon=0.0)([made], [paid([0, 1], [1, 0])], {})
    assert flat(by_turn(credit)) == pytest.approx([0.25, -0.75, 0.25, 0.25])


def test_ui_s1_by_hand():
    """Returns: [1, 0.5], as the second turn differs, and [0.1, 1.5, 1], as the first does. The step level compares 1
    with 0.1, and 0.5 with 1.5; the third turn is alone. Rewards have a mean of 0.72 and a deviation of 0.40866."""
    infos = [[{"matched": 1.0}, {"matched": 0.0}], [{"matched": 0.0}, {"matched": 1.0}, {"matched": 1.0}]]
    made = group(trajectory([1, 1], infos=infos[0]), trajectory([1, 1, 2], infos=infos[1]))
    rewards = paid([1, 0.5], [0.1, 1, 1])
    [credit] = UIS1(epsilon=0.0)([made], [rewards], {})
    half = np.sqrt(0.5)
    turns, places = np.array([0.28, -0.22, -0.62, 0.28, 0.28]), np.array([half, -half, -half, half, 0])
    assert flat(by_turn(credit)) == pytest.approx(turns / np.sqrt(0.167) + places, abs=1e-5)
    [credit] = UIS1(epsilon=0.0, episode="trajectories", step_weight=2.0)([made], [rewards], {})
    assert flat(by_turn(credit)) == pytest.approx(half * np.array([1, -3, -1, 3, 1]), abs=1e-5)  # totals: 1.5 and 2.1
    [credit] = UIS1(scale_by_std=False, step_weight=0.0)([made], [rewards], {})
    assert flat(by_turn(credit)) == pytest.approx([0.28, -0.22, -0.62, 0.28, 0.28])
    [credit] = UIS1(discount=1.0, scale_by_std=False)([made], [rewards], {})
    assert flat(by_turn(credit))[3] == pytest.approx(0.28 + 0.75)  # 2 of [0.5, 2]


def test_turns_are_drawn_across_groups_in_lots():
    groups = [group(*(trajectory([1] * 4) for _ in range(3)), slot=slot) for slot in range(2)]
    scores = [paid(*([1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1])) for _ in groups]
    alone = [by_turn(c) for c in SRGPO(step_group_size=24, epsilon=0.0)(groups, scores, {})]
    assert set(np.round(flat(flat(alone)), 4)) == set(np.round(0.5 * np.array([1, -1]) * np.sqrt(23 / 24), 4))
    lots = [by_turn(c) for c in SRGPO(step_group_size=5, epsilon=0.0)(groups, scores, {})]
    assert sum(flat(flat(lots))) == pytest.approx(0, abs=1e-5)
    assert lots != alone


def test_reinforce_pp_by_hand():
    made = group(trajectory([2], logprobs=[[-1.0, -1.0]]), trajectory([3], logprobs=[[-1.0] * 3]))
    reference = stream([[[-1.2, -0.9]], [[-1.0, -1.3, -1.1]]])
    [credit] = ReinforcePP(kl_coef=0.1)([made], [paid([1], [0])], {"ref_logprobs": reference})
    assert by_token(credit)[0] == pytest.approx([1.2045, 1.2442], abs=1e-4)
    assert by_token(credit)[1] == pytest.approx([-0.8361, -0.8361, -0.7766], abs=1e-4)
    assert (ReinforcePP().needs, ReinforcePP(kl_coef=0.1).needs) == (frozenset(), {"ref_logprobs"})


def test_what_is_paid_later_counts_for_every_turn_before():
    made = group(trajectory([1, 1], logprobs=[[-1.0], [-1.0]]), trajectory([1, 1], logprobs=[[-1.0], [-1.0]]))
    reference = stream([[[-1.0], [-2.0]], [[-1.0], [-1.0]]])
    [credit] = ReinforcePP(kl_coef=1.0)([made], [paid([0, 1], [0, 1])], {"ref_logprobs": reference})
    assert by_token(credit) == [pytest.approx([-1, -1]), pytest.approx([1, 1])]  # 1 - 1 against 1, at every token


def test_reinforce_pp_with_a_baseline_by_hand():
    first = group(trajectory([2]), trajectory([3]))
    second = group(trajectory([1]), trajectory([4]), slot=1)
    found = ReinforcePP(baseline=True)([first, second], [paid([1], [0]), paid([0.9], [0.3])], {})
    expected = [1.6503, -0.9283, 1.1346, -0.4126]
    assert [turns[0] for credit in found for turns in by_turn(credit)] == pytest.approx(expected, abs=1e-4)


def test_rae_by_hand():
    seats = trajectory([1], agent="first"), trajectory([1], agent="second")
    estimator = RAE()
    [credit] = estimator([of_episodes([seats])], [paid([1], [-1])], {})
    assert flat(by_turn(credit)) == [1, -1]
    [credit] = estimator([of_episodes([seats])], [paid([-1], [1])], {})
    assert flat(by_turn(credit)) == pytest.approx([-1.05, 1.05])
    resumed = RAE()
    resumed.restore(estimator.state())
    [credit] = resumed([of_episodes([seats])], [paid([1], [-1])], {})
    assert flat(by_turn(credit)) == pytest.approx([1.0025, -1.0025])


def test_rae_moves_its_average_from_game_to_game():
    """Won, won and lost in one step, by a seat whose average moves by a tenth; two plays of one group have one."""
    seat = trajectory([1], agent="first")
    games = [of_episodes([[seat]], slot=n) for n in range(3)]
    found = RAE(decay=0.9)(games, [paid([1]), paid([1]), paid([-1])], {})
    assert [by_turn(credit)[0][0] for credit in found] == pytest.approx([1, 0.9, -1.19])
    estimator = RAE(decay=0.9)
    [both] = estimator([of_episodes([[seat], [seat]])], [paid([1], [-1])], {})
    assert flat(by_turn(both)) == [1, -1]
    assert estimator.state() == {"made/first": 0}
