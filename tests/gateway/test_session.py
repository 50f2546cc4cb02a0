"""Sessions: what clients send back is found in what was sampled, and the tokens recorded are the tokens sampled."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.gateway.requests import RequestError
from sojourn.types import Ending, Message, Role, ToolCall
from tests.gateway_sessions import LOOK, asked, exact, renderer, replies, said, session, user

CALL = ToolCall("look", {"at": "the door", "n": 1})
SYSTEM = Message(Role.SYSTEM, "Be brief.")


def answer(text, call):
    return Message(Role.TOOL, text, answers=call.id)


async def test_each_request_extends_the_sampled_tokens():
    one, sampler = session(replies(said("", "", CALL), said("I see a door. "), said("Bye.")))
    first = (await one.reply(asked(SYSTEM, user("Look."), tools=[LOOK])))[0]
    assert first.finish == "calls"
    assert [call.name for call in first.message.calls] == ["look"]
    history = [SYSTEM, user("Look."), first.message, answer("A door.", first.message.calls[0])]
    second = (await one.reply(asked(*history, tools=[LOOK])))[0]
    assert (second.message.text, second.finish) == ("I see a door. ", "stop")
    sent_back = said("I see a door.")  # trimmed
    await one.reply(asked(*history, sent_back, user("Thanks."), tools=[LOOK]))
    assert [turn.parent for turn in one.turns] == [-1, 0, 1]
    assert [turn.tools for turn in one.turns] == [(LOOK,), (), ()]
    assert one.turns[2].observed == (user("Thanks."),)
    assert one.counts == {"window_first": 1}
    exact(one, sampler)
    whole = sum(map(len, sampler.prompts))
    assert sum(len(turn.context) for turn in one.turns) < whole / 2


async def test_an_oddly_tokenised_reply_is_not_tokenised_again():
    one, sampler = session(replies(said("window"), said("x")))
    await one.reply(asked(user("Hi")))
    await one.reply(asked(user("Hi"), said("window"), user("more")))
    format = renderer()
    again = format.encode_reply(said("window"))
    sampled = sampler.samples[0].tokens.tolist()
    assert sampled != again
    assert format.decode(sampled) == format.decode(again)
    prompt = sampler.prompts[1]
    assert prompt[len(sampler.prompts[0]) :][: len(sampled)] == sampled


@pytest.mark.parametrize(
    "changed",
    [
        said("Look here.", "", CALL),
        said("", "", CALL),
        said(" Look here. ", "", replace(CALL, id="other_id")),
        said("Look here.", "a thought", CALL),
        said("Look here.", "", ToolCall("look", {"n": 1, "at": "the door"})),
    ],
    ids=["the same", "text dropped beside calls", "blanks and ids", "thought kept", "arguments in another order"],
)
async def test_replies_that_clients_rewrite_are_recognised(changed):
    one, sampler = session(replies(said("Look here.", "a thought", CALL), said("", "x")), thinking=True)
    await one.reply(asked(user("Look."), tools=[LOOK]))
    await one.reply(asked(user("Look."), changed, answer("A door.", CALL), tools=[LOOK]))
    assert [turn.parent for turn in one.turns] == [-1, 0]
    exact(one, sampler)


@pytest.mark.parametrize(
    "changed",
    [
        said("Look there.", "", CALL),
        said("Look here.", "another thought", CALL),
        said("Look here.", "", ToolCall("look", {"at": "the window", "n": 1})),
        said("Look here.", "", ToolCall("see", {"at": "the door", "n": 1})),
        said("Look here.", "", CALL, CALL),
        said("Look here."),
    ],
    ids=["text", "thought", "arguments", "name", "another call", "no call"],
)
async def test_a_reply_of_other_words_begins_a_new_context(changed):
    one, sampler = session(replies(said("Look here.", "a thought", CALL), said("", "x")), thinking=True)
    await one.reply(asked(user("Look."), tools=[LOOK]))
    await one.reply(asked(user("Look."), changed, user("More."), tools=[LOOK]))
    assert [turn.parent for turn in one.turns] == [-1, -1]
    exact(one, sampler)


async def test_numbers_that_clients_write_anew_are_the_same_and_other_values_are_not():
    sampled = {"a": 9.0, "b": 1, "c": [True, -0.0, {"d": 12345678901234567891}], "e": 1e3}
    sent = {"e": 1000, "c": [True, 0, {"d": 12345678901234567000}], "b": 1.0, "a": 9}
    told = said("", "", ToolCall("look", sampled))
    one, sampler = session(lambda prompt: told)
    await one.reply(asked(user("Look."), tools=[LOOK]))
    for arguments, parent in ((sent, 0), ({**sent, "b": True}, -1), ({**sent, "a": 9.5}, -1), ({**sent, "a": "9"}, -1)):
        await one.reply(asked(user("Look."), said("", "", ToolCall("look", arguments)), user("?"), tools=[LOOK]))
        assert one.turns[-1].parent == parent
    exact(one, sampler)


async def causes(*requests):
    one, sampler = session(lambda prompt: said(f"reply {len(prompt)}"))
    for request in requests:
        request = request(one) if callable(request) else request
        await one.reply(request)
    exact(one, sampler)
    return [cause.removeprefix("window_") for cause in one.counts if cause.startswith("window_")], one


def continued(one, *more, tools=()):
    last = one.placement.recorded[-1]
    return asked(*last.messages, *more, tools=tools)


async def test_causes_of_new_contexts_are_told_apart():
    first = asked(SYSTEM, user("Do it."), tools=[LOOK])
    kinds, one = await causes(first, lambda s: continued(s, user("On."), tools=[]))
    assert kinds == ["first", "tools"]
    kinds, one = await causes(
        first, lambda s: asked(SYSTEM, user("Do it!"), s.placement.recorded[0].reply, user("On."))
    )
    assert kinds == ["first", "rewritten"]
    assert one.turns[1].notes == {
        "new context": "rewritten: what came before our last reply was changed",
        "history differs at": "message 2 of the user, from character 6 on", "history before": ".", "history now": "!",
    }  # fmt: skip
    kinds, one = await causes(first, asked(SYSTEM, user("Do it."), user("What was done: all."), tools=[LOOK]))
    assert kinds == ["first", "compacted"]
    kinds, one = await causes(first, asked(Message(Role.SYSTEM, "Write a title."), user("Do it.")))
    assert kinds == ["first", "side"]
    kinds, one = await causes(first, first)
    assert kinds == ["first", "repeated"]
    assert one.turns[1].info == {"window_repeated": 1.0}
    assert one.turns[0].info == {}


TOOLS = [LOOK]
LOOKS = ToolCall("look", {"at": "door"})
SEEN_SO_FAR = "A door was seen, and a wall on the left; the window is left to be looked at."
SHORTER = user("Summarise what was done.")
LEFT = said("I am at the door.", "", ToolCall("look", {"at": "left"}))


@pytest.mark.parametrize("tools", [TOOLS, []])
@pytest.mark.parametrize(
    "after",
    [
        lambda summary: [user("Do it."), user(f"So far: {summary.text}")],  # what the user said is kept, as Codex does
        lambda summary: [user(f"Do it. So far: {summary.text}")],  # all is in one message
        lambda summary: [user("What was done?"), summary, user("Go on.")],  # the summary is our reply, as in opencode
        lambda summary: [user(summary.text), LEFT, Message(Role.TOOL, "A wall.", answers="look"), user("Go on.")],
    ],
)
async def test_a_compaction_opens_one_context_that_goes_on_by_itself(tools, after):
    """The client asks for a summary, with the tools or without, and goes on from that; the first replies are gone."""
    script = replies(said("I look.", "", LOOKS), LEFT, said(SEEN_SO_FAR), said("On.", "", LOOKS), said("Done."))
    one, sampler = session(script)
    await one.reply(asked(SYSTEM, user("Do it."), tools=TOOLS))
    await one.reply(continued(one, Message(Role.TOOL, "A door.", answers="look"), tools=TOOLS))
    await one.reply(continued(one, Message(Role.TOOL, "A wall.", answers="look"), SHORTER, tools=tools))
    summary = one.placement.recorded[-1].reply
    await one.reply(asked(SYSTEM, *after(summary), tools=TOOLS))
    await one.reply(continued(one, Message(Role.TOOL, "A door.", answers="look"), tools=TOOLS))
    assert one.turns[3].info == {"window_compacted": 1.0}
    assert one.counts["window_compacted"] == 1
    assert [turn.parent for turn in one.turns] == [-1, 0, 1 if tools else -1, -1, 3]
    assert one.counts["window_tools"] == (0 if tools else 1)
    assert one.counts["window_rewritten"] == 0
    exact(one, sampler)


async def test_a_reply_that_is_changed_is_no_compaction():
    one, sampler = session(replies(said("first"), said("second"), said("third")))
    await one.reply(asked(SYSTEM, user("Do it.")))
    await one.reply(continued(one, user("On.")))
    await one.reply(asked(SYSTEM, user("Do it."), said("FIRST"), user("On."), said("second"), user("So?")))
    assert one.turns[2].info == {"window_rewritten": 1.0}
    exact(one, sampler)


async def test_replies_of_ours_keep_their_tokens_in_a_new_context():
    one, sampler = session(replies(said("window"), said("door"), said("x")))
    await one.reply(asked(SYSTEM, user("Hi")))
    await one.reply(asked(SYSTEM, user("Hi"), said("window"), user("And?")))
    invented = said("I had a look.", "with a thought")
    await one.reply(asked(user("Hi"), said("window"), user("And?"), invented, said("door"), user("So?")))
    assert one.turns[2].parent == -1
    prompt = ",".join(map(str, sampler.prompts[2]))
    for sample in sampler.samples[:2]:
        assert ",".join(map(str, sample.tokens.tolist())) in prompt
    text = renderer().decode(sampler.prompts[2])
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nwindow<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
        "<|im_start|>assistant\nI had a look.<|im_end|>\n<|im_start|>assistant\ndoor<|im_end|>\n"
        "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )
    exact(one, sampler)


async def test_of_equal_replies_the_one_whose_call_ids_come_back_is_extended():
    one, sampler = session(lambda prompt: said("", "", CALL))
    request = asked(user("Look."), tools=[LOOK])
    older = (await one.reply(request))[0].message
    newer = (await one.reply(request))[0].message
    assert older.calls[0].id != newer.calls[0].id
    for told, parent in ((older, 0), (newer, 1)):
        bare = replace(told, calls=(replace(told.calls[0], id=told.calls[0].id.replace("call", "call_")),))
        await one.reply(asked(user("Look."), bare, answer("A door.", bare.calls[0]), tools=[LOOK]))
        assert one.turns[-1].parent == parent
    forgotten = replace(older, calls=(CALL,))
    await one.reply(asked(user("Look."), forgotten, answer("A door.", CALL), tools=[LOOK]))
    assert one.turns[-1].parent == 1, "the latest, where no id says otherwise"
    exact(one, sampler)


async def test_n_replies_are_siblings_with_seeds_of_their_own():
    one, sampler = session(lambda prompt: said("a"))
    found = await one.reply(asked(user("Hi"), samples=3))
    assert [reply.number for reply in found] == [0, 1, 2]
    assert len({params.seed for params in sampler.params}) == 3
    again, other = session(lambda prompt: said("a"))
    await again.reply(asked(user("Something else")))
    await again.reply(asked(user("Hi"), samples=3))
    assert [params.seed for params in other.params[1:]] == [params.seed for params in sampler.params]


async def test_a_reply_that_cannot_be_read_is_told_as_text_and_recorded():
    broken = '<tool_call>{"name": "look", "arg'
    one, sampler = session(replies(broken, said("x")))
    reply = (await one.reply(asked(user("Look."), tools=[LOOK])))[0]
    assert (reply.message.text, reply.finish) == (broken, "length")
    assert one.turns[0].message is None
    assert one.turns[0].info == {"malformed": 1.0}
    await one.reply(asked(user("Look."), said(broken), user("?"), tools=[LOOK]))
    assert one.turns[1].parent == 0
    exact(one, sampler)


async def test_a_stop_string_ends_the_reply_and_is_not_told():
    one, sampler = session(replies(said("Thought: look\nObservation: a door"), said("x")))
    reply = (await one.reply(asked(user("Go."), stop=("Observation:",))))[0]
    assert (reply.message.text, reply.finish, reply.stop_string) == ("Thought: look\n", "stop_string", "Observation:")
    await one.reply(asked(user("Go."), reply.message, user("a door")))
    assert one.turns[1].parent == 0
    exact(one, sampler)


async def test_a_list_of_allowed_replies_is_a_constraint():
    one, sampler = session(replies(said("whatever")))
    reply = (await one.reply(asked(user("Yes?"), choices=('"yes"', '"no"'))))[0]
    assert reply.message.text == '"yes"'
    assert one.turns[0].sample.tokens.tolist() == list(sampler.params[0].choices[0])


async def test_what_cannot_be_answered_is_refused_with_one_sentence():
    one, _ = session(lambda prompt: said("a"), max_context=40, turns=2)
    with pytest.raises(RequestError, match="has no messages"):
        await one.reply(asked())
    with pytest.raises(RequestError, match="ends with a message of the assistant"):
        await one.reply(asked(user("Hi"), said("I")))
    with pytest.raises(RequestError, match="at most 40 tokens") as full:
        await one.reply(asked(user("word " * 50)))
    assert (full.value.code, one.ending) == ("context_length_exceeded", Ending.TOKENS)
    await one.reply(asked(user("Hi"), samples=2))
    with pytest.raises(RequestError, match="may have 2 replies") as over:
        await one.reply(asked(user("Hi")))
    assert (over.value.status, one.ending) == (403, Ending.TURNS)
    assert len(one.turns) == 2


async def test_the_client_s_limit_counts_where_it_is_lower():
    one, sampler = session(lambda prompt: said("a"))
    await one.reply(asked(user("Hi"), max_tokens=5))
    await one.reply(asked(user("Hi"), max_tokens=100_000))
    assert [params.max_tokens for params in sampler.params] == [5, 512]


async def test_the_recipe_s_temperature_counts_where_it_trains_and_the_client_s_where_it_serves():
    one, sampler = session(lambda prompt: said("a"))
    await one.reply(asked(user("Hi"), temperature=0.0, top_p=0.5))
    one.sampling = "client"
    await one.reply(asked(user("Hi"), temperature=0.0, top_p=0.5))
    assert [(params.temperature, params.top_p) for params in sampler.params] == [(1.0, 1.0), (0.0, 0.5)]


TEXTS = st.text(alphabet="ab <>_\n", max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 5), TEXTS, st.booleans(), st.booleans()), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_fuzzed_echoes_extend_and_changed_words_never_do(steps):
    """Clients that keep, trim or change what they were told, interleaved in one session."""

    async def run():
        counter = iter(range(1000))
        one, sampler = session(lambda prompt: said(f"say {next(counter)} ", "", *([CALL] if len(prompt) % 2 else [])))
        ways: list[list[Message]] = [[user(f"task {n}")] for n in range(3)]
        for place, text, trim, change in steps:
            messages = ways[place % 3]
            reply = (await one.reply(asked(*messages, tools=[LOOK])))[0]
            echoed = replace(reply.message, text=reply.message.text.strip() if trim else reply.message.text)
            kept = replace(echoed, text=f"{echoed.text}changed") if change else echoed
            messages += [kept, user(text)]
            before = len(one.turns)
            await one.reply(asked(*messages, tools=[LOOK]))
            assert one.turns[before].parent == (-1 if change else reply.number)
        exact(one, sampler)

    asyncio.run(run())


async def test_agents_at_once_share_no_root():
    """Sub-agents of one session, interleaved at random points of time."""
    gates: list[asyncio.Event] = []

    async def wait():
        gates.append(asyncio.Event())
        await gates[-1].wait()

    one, sampler = session(lambda prompt: said(prompt.rpartition("task ")[2][:2]), wait=wait)

    async def agent(name):
        messages = [Message(Role.SYSTEM, f"You are {name}."), user(f"task {name}")]
        for turn in range(3):
            reply = (await one.reply(asked(*messages)))[0]
            assert reply.message.text.startswith(str(name))
            messages += [reply.message, user(f"task {name} {turn}")]

    agents = [asyncio.create_task(agent(10 + n)) for n in range(8)]
    while not all(task.done() for task in agents):
        await asyncio.sleep(0)
        for gate in reversed(gates):
            gate.set()
    for task in agents:
        task.result()
    exact(one, sampler)
    roots = [n for n, turn in enumerate(one.turns) if turn.parent < 0]
    assert len(roots) == 8
    assert one.placement.recorded[-1].number == 23


async def test_turns_that_no_client_was_sent_say_so():
    one, _ = session(lambda prompt: said("a"))
    await one.reply(asked(user("Hi"), samples=2))
    one.delivered.add(1)
    assert [turn.info.get("undelivered") for turn in one.trajectory(Ending.DONE).turns] == [1.0, None]


async def test_an_action_is_of_the_turn_that_made_its_call():
    look = ToolCall("look", {"at": "door"})
    script = replies(said("", "", look), said("", "", look), said("Well."))
    one, _ = session(script)
    first = (await one.reply(asked(user("Go"), tools=[LOOK])))[0].message
    second = (await one.reply(asked(user("Go"), first, user("On"), tools=[LOOK])))[0].message
    await one.reply(asked(user("Other")))
    named = said("", "", ToolCall("look", {"at": "door"}))
    assert one.placement.turn_of(named, first.calls[0].id) == 0
    assert one.placement.turn_of(named, second.calls[0].id.upper().lower()) == 1
    assert one.placement.turn_of(named) == 1  # the latest with such a call
    assert one.placement.turn_of(said("", "", ToolCall("fly", {}))) == 2
    assert one.placement.turn_of(said("Well.")) == 2
    one.add_reward(0, 0.5, {"a": 1.0}, "state")
    one.add_reward(0, 0.25, {"b": 2.0})
    turn = one.trajectory(Ending.DONE).turns[0]
    assert (turn.reward, turn.state) == (0.75, "state")
    assert (turn.info["a"], turn.info["b"]) == (1.0, 2.0)


async def test_a_session_that_could_not_go_on_may_do_so_with_a_shorter_request():
    one, _ = session(lambda prompt: said("Hi"), max_context=200)
    with pytest.raises(RequestError, match="no room to reply"):
        await one.reply(asked(user("x " * 400)))
    assert one.ending is Ending.TOKENS
    await one.reply(asked(user("x")))
    assert one.ending is None
