"""``adaptft plan --compare``, ``--budget``, ``--deadline``, prices and GPUs from files."""

import json
import re
from html.parser import HTMLParser

import pytest

from adaptft.cli.amounts import read_prices, read_seconds, read_usd
from adaptft.cli.price_file import price_file, price_text
from adaptft.cli.price_file import read_prices as read_file
from adaptft.errors import RequestError
from adaptft.policy.prices import ANY_GPU, PRICES

GPU = {
    "key": "x1", "names": ["NVIDIA X1"], "compute_capability": [9, 0], "sm_count": 100, "memory_gib": 60,
    "memory_gb_per_second": 3000, "fp32_tflops": 50, "tf32_tflops": 400, "fp16_tflops": 800, "bf16_tflops": 800,
    "fp8_tflops": 1600,
}  # fmt: skip


@pytest.fixture
def plan(adaptft_here, tmp_path, monkeypatch):
    """Run the command for a model that is not here, with settings of nobody's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)

    def run(*words, train_type="lora"):
        return adaptft_here("plan", "--model", "qwen2.5-7b", "--train_type", train_type, *words)

    run.folder = tmp_path
    return run


def test_several_gpus_stand_in_one_table_with_a_recommendation(plan):
    done = plan("--compare", "t4,a10,a100-80g,2xl4")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for part in ("samples/s", "Cheapest", "Fastest", "2xl4", "2026-05-07"):
        assert part in text
    assert "assumed, since no rows were measured" in text


def test_numbers_come_as_json(plan):
    found = json.loads(plan("--compare", "t4,a10,h100:mig-1g.10gb", "--json").stdout)
    options = {option["gpu"]: option for option in found["options"]}
    assert [option["fits"] for option in options.values()] == [False, True, False]
    ten = options["a10"]
    assert ten["usd"] == pytest.approx(ten["total_seconds"] / 3600 * ten["usd_per_gpu_hour"])
    assert ten["needed_bytes"] < ten["capacity_bytes"]
    assert options["t4"]["ways_out"][0].startswith("--train_type qlora needs")
    assert {advice["for"] for advice in found["recommendations"]} == {"cheapest", "fastest"}


class Page(HTMLParser):
    """Tags that are opened and closed, and addresses that a browser would fetch."""

    VOID = ("meta", "rect", "br")

    def __init__(self):
        super().__init__()
        self.open, self.fetched = [], []

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(plan):
    done = plan("--compare", "a10,h100,t4", "--html", "gpus.html")
    assert done.returncode == 0, done.stderr
    text = (plan.folder / "gpus.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "http" not in re.sub(r"<!doctype[^>]*>", "", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<rect") == 4  # two that fit, in time and in money
    assert "<script" not in text


def test_a_page_that_cannot_be_written_is_named(plan):
    done = plan("--compare", "a10", "--html", "nowhere/gpus.html")
    assert done.returncode == 1
    assert "--html nowhere/gpus.html cannot be written" in done.stderr


def test_what_fits_nowhere_ends_with_status_3(plan):
    done = plan("--compare", "t4,a10", train_type="full")
    assert done.returncode == 3
    assert "The job fits none of these machines." in done.stderr


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (("--deadline", "12h"), None),
        (("--budget", "50", "--compare", "a10,h100"), "fastest within $50.00"),
        (("--deadline", "12h", "--budget", "50", "--gpu", "h100"), "cheapest within $50.00 and 12 h 0 min"),
    ],
)
def test_limits_choose_among_all_gpus_or_those_named(plan, words, chosen):
    found = json.loads(plan(*words, "--json").stdout)
    assert found["chosen"] in {option["gpu"] for option in found["options"]}
    if chosen:
        assert found["recommendations"][0]["for"] == chosen
    else:
        assert len(found["options"]) > 15


def test_a_long_list_shows_the_best_and_says_how_many_more_there_are(plan):
    done = plan("--deadline", "12h")
    assert re.search(r"\d+ more options are not shown; --json has them all", " ".join(done.stdout.split()))


def test_limits_that_nothing_keeps_name_the_nearest(plan):
    done = plan("--budget", "0.0001", "--compare", "a10,a100-80g")
    assert done.returncode == 3
    error, fix = done.stderr.splitlines()
    assert error == "Error: No machine does this within $0.00."
    assert "comes nearest" in fix


def test_a_recorded_machine_is_held_to_a_budget_too(plan):
    from sample_plan import MACHINE

    from adaptft.records import dumps

    (plan.folder / "machine.json").write_text(dumps(MACHINE))
    found = json.loads(plan("--machine", "machine.json", "--budget", "500", "--json").stdout)
    assert [option["gpu"] for option in found["options"]] == ["machine.json"]


def test_here_is_this_machine(plan):
    found = json.loads(plan("--compare", "here,h100", "--json").stdout)
    assert [option["gpu"] for option in found["options"]] == ["here", "h100"]


def test_a_gpu_from_a_file_is_planned_for(plan):
    (plan.folder / "x1.json").write_text(json.dumps(GPU))
    done = plan("--gpu-file", "x1.json", "--gpus", "2", "--price", "2")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "NVIDIA X1" in text
    assert "idle GPUs as the file describes them" in text
    assert "$2.00 a GPU and hour (--price)" in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"key": "x1"}', "is not a GPU"),
        (json.dumps(GPU | {"memory_gib": 0}), "describes no GPU: memory_gib 0"),
        (json.dumps(GPU | {"names": []}), "describes no GPU: it has no name"),
        ("[", "is not a GPU"),
    ],
)
def test_a_file_that_describes_no_gpu_is_refused(plan, content, problem):
    (plan.folder / "x1.json").write_text(content)
    done = plan("--gpu-file", "x1.json")
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpu", "a10", "--compare", "h100"), "--gpu and --compare both name a machine."),
        (("--nvlink",), "--nvlink is for GPUs that are not here"),
        (("--gpu", "l4", "--gpus", "2", "--nvlink"), "NVIDIA L4 has no NVLink."),
        (("--compare", " , "), "--compare names no GPU."),
        (("--compare", "a10,a1000"), "There is no GPU 'a1000' in the table."),
        (("--gpu", "a10", "--html", "x.html"), "--html goes with a comparison."),
        (("--gpu", "a10", "--price", "cheap"), "--price cheap is no amount"),
        (("--gpu", "a10", "--budget", "-3"), "--budget -3 is no amount"),
        (("--gpu", "a10", "--deadline", "soon"), "--deadline soon is no time."),
    ],
)
def test_contradictions_are_refused_in_two_lines(plan, words, problem):
    done = plan(*words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_links_of_gpus_that_are_not_here_are_said(plan):
    found = {
        word: json.loads(plan("--gpu", "h100", "--gpus", "4", word, "--json").stdout) for word in ("--nvlink", "--pcie")
    }
    assert {link["path"] for link in found["--nvlink"]["machine"]["links"]} == {"NV"}
    assert {link["path"] for link in found["--pcie"]["machine"]["links"]} == {"PHB"}


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("12h", 43200), ("90min", 5400), ("1h30m", 5400), ("2d", 172800), ("1.5", 5400), ("90 s", 90)],
)
def test_a_time_is_read_as_people_write_it(words, seconds):
    assert read_seconds(words) == seconds


@pytest.mark.parametrize("words", ["", "0h", "h", "12 x", "-1h"])
def test_what_is_no_time_is_refused(words):
    with pytest.raises(RequestError, match="is no time"):
        read_seconds(words)


def test_prices_are_read_for_all_gpus_or_for_one():
    assert read_prices(("2.95",), PRICES)[ANY_GPU].usd_per_hour == 2.95
    several = read_prices(("H100=$2.5,a10=0.9", "a100-80g:mig-3g.40gb=1"), PRICES)
    assert (several["h100"].usd_per_hour, several["a10"].usd_per_hour) == (2.5, 0.9)
    assert several["a100-80g:mig-3g.40gb"].usd_per_hour == 1
    assert several["t4"] == PRICES["t4"]
    assert read_prices((), PRICES) == PRICES
    assert read_usd("$50", "--budget") == 50


def test_the_price_file_starts_as_the_printed_table_and_replaces_it(plan, adaptft_here):
    printed = adaptft_here("plan", "--prices").stdout
    assert printed == price_text(PRICES)
    assert read_file(printed, "prices.csv") == PRICES
    price_file().parent.mkdir(parents=True)
    price_file().write_text("# ours\ngpu,usd_per_hour,date,source\nH100 SXM,2.95,2026-11-30,our contract\n")
    cost = json.loads(plan("--gpu", "h100", "--json").stdout)["cost"]
    assert (cost["usd_per_gpu_hour"], cost["price_source"]) == (2.95, "our contract, seen 2026-11-30")
    assert json.loads(plan("--gpu", "h100", "--price", "9", "--json").stdout)["cost"]["usd_per_gpu_hour"] == 9
    assert json.loads(plan("--gpu", "a10", "--json").stdout)["cost"]["usd_per_gpu_hour"] == PRICES["a10"].usd_per_hour


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("gpu,price\n", "does not begin with gpu,usd_per_hour,date,source"),
        ("gpu,usd_per_hour,date,source\nh100,cheap,,\n", "cheap is no price for h100"),
        ("gpu,usd_per_hour,date,source\nh1000,3,,\n", "There is no GPU 'h1000'"),
        (b"\xff\xfe", "Cannot read"),
    ],
)
def test_a_price_file_that_cannot_be_meant_is_refused(plan, content, problem):
    price_file().parent.mkdir(parents=True)
    price_file().write_bytes(content if isinstance(content, bytes) else content.encode())
    done = plan("--gpu", "h100")
    assert done.returncode == 2
    assert problem in done.stderr


def test_measured_rows_are_said_to_be_measured(adaptft_here, tiny_qwen2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = json.dumps({"instruction": "Add 2 and 3.", "input": "", "output": "2 + 3 = 5"})
    (tmp_path / "rows.jsonl").write_text((row + "\n") * 40)
    words = ("plan", "--model", str(tiny_qwen2), "--dataset", "rows.jsonl", "--compare", "t4,a10")
    text = " ".join(adaptft_here(*words).stdout.split())
    assert "Data (measured): 40 rows of" in text
