"""AdamW for weights and states in 16 bit, rounded at random.

A bf16 weight has 8 significant bits: rounding to the nearest, every update smaller than 1/512 of it is lost, which is
most of them at the learning rates of fine-tuning. Rounded up or down with probabilities that make the rounded value
right on average (stochastic rounding; Gupta et al. 2015, and for bf16 training Zamirai et al. 2020), many small
updates count as their sum. Gradients are clipped in the same trip through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

LOW_BITS = 0xFFFF
"""Of a float32: what bf16 leaves out."""
SEED_STRIDE, STEP_STRIDE = 7_919, 1_000_003
"""Primes, so that the random numbers of one parameter and step are not those of another."""


class Settings(NamedTuple):
    """AdamW's numbers for one parameter."""

    rate: float
    beta1: float
    beta2: float
    epsilon: float
    decay: float
    """Weights are multiplied by ``1 - rate * decay``."""
    seed: int
    """Of the rounding, beside the step."""


class Guard(NamedTuple):
    """What torch's fused optimizers are told on the device, as a gradient scaler does: float32 scalars, or None."""

    grad_scale: Tensor | None
    """Gradients are divided by it."""
    found_inf: Tensor | None
    """Nothing changes where it is not 0."""


class RoundedAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) over bf16 parameters, with states in bf16.

    Rounding depends on the seed, the step and the parameter alone: a run that goes on rounds as one that was not cut.

    Args:
        params, lr, betas, eps, weight_decay: as torch's AdamW takes them.
    """

    _step_supports_amp_scaling = True  # torch's word for optimizers that heed grad_scale and found_inf

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        seed: int = 0,
    ) -> None:
        # fused is torch's word for steps that are counted on the device, where loading has to put them
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True})
        self.seed = seed
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        guard = Guard(self.grad_scale, self.found_inf)
        places = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        steps = [self._state(parameter)["step"] for _, parameter in places if parameter.grad is not None]
        torch._foreach_add_(steps, 1)
        if guard.found_inf is not None:
            torch._foreach_sub_(steps, [guard.found_inf.to(step.device) for step in steps])
        for number, (group, parameter) in enumerate(places):
            if parameter.grad is not None:
                self._update(number, group, parameter, guard)
        return loss

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _update(self, number: int, group: dict[str, Any], parameter: Tensor, guard: Guard) -> None:
        seed = (self.seed + SEED_STRIDE * number) % 2**31
        beta1, beta2 = group["betas"]
        settings = Settings(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], seed)
        state = self.state[parameter]
        named = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        weight, gradient, mean, square = (_local(tensor) for tensor in named)
        update(weight, gradient, mean, square, state["step"], settings, guard)


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def update(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor, settings: Settings, guard: Guard
) -> None:
    """One step of AdamW in place: ``weight``, ``mean`` and ``square`` in bf16, computed in float32.

    Weights and squares are rounded at random, since their changes are small beside them; means to the nearest.

    Args:
        step: a float32 scalar on the same device, 1 in the first step; corrects the bias of means, which begin at 0.
    """
    if weight.is_cuda:
        from adaptft.kernels.triton_adamw import update_on_gpu

        update_on_gpu(weight, gradient, mean, square, step, settings, guard)
        return
    if guard.found_inf is not None and bool(guard.found_inf):
        return
    wide = gradient.float() if guard.grad_scale is None else gradient.float() / guard.grad_scale
    first = settings.beta1 * mean.float() + (1 - settings.beta1) * wide
    second = settings.beta2 * square.float() + (1 - settings.beta2) * wide.square()
    unbiased = first / (1 - settings.beta1**step)
    root = (second / (1 - settings.beta2**step)).sqrt() + settings.epsilon
    new = weight.float() * (1 - settings.rate * settings.decay) - settings.rate * unbiased / root
    generator = torch.Generator(weight.device).manual_seed(settings.seed + STEP_STRIDE * int(step))
    mean.copy_(first)
    weight.copy_(round_at_random(new, generator))
    square.copy_(round_at_random(second, generator))


def round_at_random(values: Tensor, generator: torch.Generator) -> Tensor:
    """float32 to bf16: to either neighbour, with a probability that falls with the distance."""
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint(0, LOW_BITS + 1, bits.shape, generator=generator, dtype=torch.int32, device=values.device)
    rounded = torch.where(values.isfinite(), (bits + noise) & ~LOW_BITS, bits)
    return rounded.view(torch.float32).to(torch.bfloat16)
