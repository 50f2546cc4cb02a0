"""A real taskset and Env of verifiers v1: a number from 1 to 8 is to be found in four guesses."""

import verifiers.v1 as vf

NUMBERS = {str(number): number for number in range(1, 9)}


class NumberData(vf.TaskData):
    number: int


class NumberTask(vf.Task[NumberData]):
    @vf.reward
    async def found(self, trace) -> float:
        return float(trace.info.get("found", False))


class Numbers(vf.Taskset[NumberTask]):
    def load(self):
        for number in NUMBERS.values():
            yield NumberTask(NumberData(number=number, system_prompt="You find numbers."), self.config.task)


class NumbersConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class NumbersEnv(vf.Env[NumbersConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as it:
            said = await it.turn("Say a number from 1 to 8.")
            for left in range(3, -1, -1):
                if said.terminated:
                    return
                guess = said.last_reply.strip()
                if guess == "crash":
                    raise RuntimeError("the wheel is stuck")
                if guess == str(task.data.number):
                    it.trace.info["found"] = True
                    return
                if left == 0:
                    return
                number = NUMBERS.get(guess)
                told = "That is no number from 1 to 8." if number is None else "lower"
                said = await it.turn("higher" if number is not None and number < task.data.number else told)


__all__ = ["Numbers", "NumbersEnv"]
