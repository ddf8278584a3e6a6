"""adaptft plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adaptft.cli.options import json_option, machine_option, options_in_order, request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.requests import TrainRequest

if TYPE_CHECKING:
    from adaptft.cli.where import Where
    from adaptft.policy.comparison import Limits
    from adaptft.policy.prices import Prices

EXAMPLE = """\
adaptft plan --model qwen-7b --train_type qlora
adaptft plan --model qwen-14b --train_type lora --gpu a100-80g:mig-3g.40gb
adaptft plan --model qwen-7b --compare a10,a100-80g,8xh100 --html gpus.html
adaptft plan --model qwen-14b --train_type lora --deadline 12h --budget 50
adaptft plan recipes/qwen2.5-7b-lora.yaml --machine machine.json --json"""
FILE = click.Path(path_type=Path, dir_okay=False)


GPU_OPTIONS = (
    click.option("--gpu", metavar="NAME", help="Plan for a GPU that is not here: a10, h100, a100-80g:mig-3g.40gb ..."),
    click.option("--gpus", metavar="NUMBER", type=int, help="How many of them; default: 1."),
    click.option("--nvlink", "joined", flag_value="nvlink", help="They are joined by NVLink."),
    click.option("--pcie", "joined", flag_value="pcie", help="They talk over PCIe; default: as they are sold."),
    click.option("--gpu-file", metavar="FILE", type=FILE, help="A GPU that the table does not know, as JSON."),
)  # fmt: skip
"""Which GPUs, where they are not here."""
_OPTIONS = (
    *GPU_OPTIONS,
    click.option("--compare", metavar="A,B,...", help="Compare GPUs (8xh100: eight; here: this machine; all)."),
    click.option("--html", metavar="FILE", type=FILE, help="Also write the comparison as a page with charts."),
    click.option("--price", metavar="USD", multiple=True, help="Per GPU and hour: 2.95, or h100=2.95,a10=0.9."),
    click.option("--budget", metavar="USD", help="Choose the fastest GPU that costs no more in all."),
    click.option("--deadline", metavar="TIME", help="Choose the cheapest GPU that is done in time: 12h, 90min, 2d."),
    click.option("--prices", is_flag=True, help="Print the prices, to be edited as ~/.config/adaptft/prices.csv."),
    click.option("--accuracy", is_flag=True, help="Print how far the plans of this user's runs were off."),
)  # fmt: skip


@request_command(TrainRequest, example=EXAMPLE, alone=("prices", "accuracy"))
@machine_option
@options_in_order(_OPTIONS)
@json_option
def command(parsed: Parsed[TrainRequest] | None = None, *, as_json: bool, **given: Any) -> None:
    """Decide how to train on this machine, and say why.

    Takes the options of adaptft train, and trains nothing. The status is 3 where nothing fits.
    """
    prices_asked, accuracy_asked = given.pop("prices"), given.pop("accuracy")
    if parsed is None:
        _print_kept(prices=prices_asked, accuracy=accuracy_asked, as_json=as_json)
        return
    _answer(parsed, as_json=as_json, **given)


def _print_kept(*, prices: bool, accuracy: bool, as_json: bool) -> None:
    """What is kept between plans: prices, and the history of predictions."""
    if accuracy:
        from adaptft.cli.accuracy_page import print_accuracy

        print_accuracy(as_json=as_json)
    if prices:
        from adaptft.cli.price_file import known_prices, price_text

        click.echo(price_text(known_prices()), nl=False)


def _answer(
    parsed: Parsed[TrainRequest],
    *,
    html: Path | None,
    price: tuple[str, ...],
    budget: str | None,
    deadline: str | None,
    as_json: bool,
    **where: Any,
) -> None:
    """A plan, or a comparison of several."""
    from adaptft.cli.amounts import read_prices, read_seconds, read_usd
    from adaptft.cli.price_file import known_prices
    from adaptft.cli.where import Where
    from adaptft.policy.comparison import Limits

    named = Where(**where)
    named.check()
    limits = Limits(
        budget_usd=read_usd(budget, "--budget") if budget is not None else None,
        deadline_seconds=read_seconds(deadline) if deadline is not None else None,
    )
    prices = read_prices(price, known_prices())
    if named.compare is not None or limits.in_words:
        _compare(parsed, named, limits, prices, html, as_json=as_json)
        return
    if html is not None:
        raise RequestError("--html goes with a comparison.", fix="Add --compare a10,a100-80g, or leave it out.")
    _plan(parsed, named, prices, as_json=as_json)


def _plan(parsed: Parsed[TrainRequest], where: Where, prices: Prices, *, as_json: bool) -> None:
    from adaptft.artifacts import plan_text
    from adaptft.cli.planning import plan_on, read_subject, refuse_unfit, render_planned
    from adaptft.cli.screens import show

    machine = where.one(parsed.request)
    planned = plan_on(machine, read_subject(parsed), prices)
    if where.gpu or where.gpu_file:
        planned = replace(planned, notes=(*planned.notes, *machine.notes))
    if as_json:
        click.echo(plan_text(planned.plan), nl=False)
    else:
        show(render_planned(planned))
    refuse_unfit(planned.plan)


def _compare(
    parsed: Parsed[TrainRequest], where: Where, limits: Limits, prices: Prices, html: Path | None, *, as_json: bool
) -> None:
    from adaptft.cli import comparison
    from adaptft.cli.comparison_html import page
    from adaptft.cli.planning import read_subject
    from adaptft.cli.screens import show
    from adaptft.cli.where import COUNTS
    from adaptft.policy.comparison import recommend
    from adaptft.writable import check_file

    if html is not None:
        check_file(html, option="--html")  # before a dozen machines are planned
    counts = COUNTS if limits.in_words else (1,)
    machines = where.several(parsed.request, counts=counts)
    subject = read_subject(parsed)
    options = comparison.compare(machines, subject, prices, all_gpus=len(counts) > 1)
    shown, left_out = comparison.worth_showing(options, limits)
    advice, notes = recommend(options, limits), (*comparison.assumptions(shown, subject), *left_out)
    if html is not None:
        comparison.write_html(html, page(f"{subject.model.name}: which GPU?", shown, advice, notes))
    if as_json:
        click.echo(comparison.as_json(options, advice, comparison.assumptions(options, subject), limits), nl=False)
    else:
        show(comparison.render(shown, advice, notes, subject))
    comparison.refuse(options, limits)
