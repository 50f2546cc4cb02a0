"""Losses against Liger's, which are written to agree with TRL's (see requirements.txt)."""

import pytest
import torch

from sojourn.losses.cispo import CISPO
from sojourn.losses.gspo import GSPO
from sojourn.losses.ppo import PPO
from sojourn.losses.sapo import SAPO
from sojourn.protocols import PassOutput, SelectedTokens

liger = pytest.importorskip("liger_kernel.chunked_loss.grpo_loss", reason="liger-kernel is not installed")

PAIRS = [
    (PPO(clip_high=0.28), {"loss_type": "grpo", "epsilon_high": 0.28}, "sequence"),
    (PPO(clip_high=0.28), {"loss_type": "bnpo", "epsilon_high": 0.28}, "token"),
    (CISPO(clip_high=0.28), {"loss_type": "cispo", "epsilon_high": 1.28}, "token"),
    (SAPO(), {"loss_type": "sapo"}, "sequence"),
    (
        GSPO(),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        "sequence",
    ),
]


@pytest.mark.parametrize(("loss", "settings", "mean"), PAIRS, ids=lambda value: str(value)[:40])
def test_losses_and_their_gradients(loss, settings, mean):
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 1, 0, 0, 0]]).float()
    old, advantages = -3 * torch.rand(4, 5), torch.tensor([1.0, -0.7, 0.3, -1.2])
    now = (old + 0.4 * torch.randn(4, 5)).requires_grad_()
    given, _ = liger.LigerFusedLinearGRPOFunction.ppo_loss_fn(
        now, mask, advantages, mask, old_per_token_logps=old, beta=0.0, max_completion_length=5, **settings
    )
    lengths = mask.sum(1, keepdim=True)
    weight = mask / mask.sum() if mean == "token" else mask / lengths / len(mask)
    rows = torch.arange(4)[:, None].expand(4, 5)
    at = mask > 0
    spread = advantages[:, None].expand(4, 5)
    chosen = SelectedTokens(weight[at], old[at], spread[at], rows[at], rows[at], {})
    per_token, _ = loss(PassOutput(now[at], torch.zeros(int(at.sum())), torch.zeros(0)), chosen)
    own = (per_token * chosen.weight).sum()
    torch.testing.assert_close(own, given, atol=1e-5, rtol=1e-4)
    both = [torch.autograd.grad(value, [now], retain_graph=True)[0] for value in (own, given)]
    torch.testing.assert_close(*both, atol=1e-6, rtol=1e-3)
