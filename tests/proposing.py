"""Recipes in which tasks are proposed and solved, for tests."""

ONE = """
name = "proposals"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
agent = { name = "plain", choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 16 }
rollout = { limits = { turns = 12 } }
record = { checkpoint_every = 1 }
[env]
name = "proposing"
choices = true
limits = { rooms = [2, 4], side_rooms = [0, 2], doors = [0, 1], decoys = [0, 1], objects = [0, 1] }
world = { name = "toy", rooms = 3, side_rooms = 1, turns = 6, choices = true }
[[stages]]
name = "rl"
steps = 3
groups = { name = "proposals", prompts = 2, proposals = 3, solves = 3 }
estimator = { name = "rloo" }
losses = [{ name = "reinforce" }]
optim = { lr = 1e-3 }
"""  # one model in both roles

TWO = (
    ONE.replace(
        "[[stages]]",
        """[models.maker]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[seats]
models = { proposer = ["maker"] }
[[stages]]""",
    )
    + """
learners = { maker = { estimator = { name = "grpo" }, losses = [{ name = "ppo" }], optim = { lr = 5e-4 } } }
"""
)
