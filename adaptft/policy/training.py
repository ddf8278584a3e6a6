"""From facts and a request to a training plan: the fastest that fits, what was rejected, and the ways out."""

from __future__ import annotations

from dataclasses import replace

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import CostEstimate, Rejected, SpeedEstimate, TrainPlan
from adaptft.policy.attempts import attempts
from adaptft.policy.cautions import cautions, pays_for_all
from adaptft.policy.prices import PRICES, Prices, price_of
from adaptft.policy.rejections import need, not_taken, too_much
from adaptft.policy.search import Candidate, fastest
from adaptft.policy.setting import Setting
from adaptft.policy.ways_out import ways_out
from adaptft.policy.wishes import check_wishes
from adaptft.requests import TrainRequest


def plan_training(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest, prices: Prices = PRICES
) -> TrainPlan:
    """The fastest plan that fits; where none fits, the leanest one with ``fits`` False and the ways out.

    ``prices`` are of GPUs by their key in the table; without one the plan has no cost.

    Raises:
        RequestError: wishes that contradict each other or this hardware.
        MachineError: a GPU is asked for and none can be used.
        MissingPackage: bitsandbytes is needed and not on ``machine``.
        DataError: no rows.
    """
    check_wishes(dataset, request, machine.software)
    tried: list[Rejected] = []
    leanest: Candidate | None = None
    for found in attempts(machine, model, dataset, request):
        fitting = [candidate for candidate in found if candidate.fits]
        if fitting:
            chosen = fastest(fitting)
            return _plan(chosen, tried + not_taken(chosen, found), prices)
        closest = min(found, key=need)
        tried.append(Rejected(closest.in_words, too_much(closest.memory)))
        leanest = closest if leanest is None else min(closest, leanest, key=need)
    assert leanest is not None, "there is always at least one precision, one optimizer and one arrangement"
    ways = list(ways_out(leanest))
    return replace(_plan(leanest, tried + ways, prices), fits=False, speed=None, cost=None)


def _plan(chosen: Candidate, rejected: list[Rejected], prices: Prices) -> TrainPlan:
    setting = chosen.setting
    return TrainPlan(
        machine=setting.machine,
        model=setting.model,
        dataset=setting.dataset,
        request=setting.request,
        decisions=chosen.decisions,
        memory=chosen.memory,
        speed=chosen.speed,
        cost=_cost(setting, chosen.speed, prices),
        rejected=tuple(rejected),
        warnings=tuple(cautions(chosen)),
    )


def _cost(setting: Setting, speed: SpeedEstimate | None, prices: Prices) -> CostEstimate | None:
    price = price_of(setting.gpu, prices) if setting.gpu else None
    if price is None or speed is None:
        return None
    there = len(setting.machine.gpus) * setting.placement.value.nodes
    paid = there if pays_for_all(setting) else setting.placement.value.num_gpus
    hours = speed.total_seconds / 3600 * paid
    return CostEstimate(
        usd_per_gpu_hour=price.usd_per_hour, total_usd=hours * price.usd_per_hour, price_source=price.in_words
    )
