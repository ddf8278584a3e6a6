"""What decides how rows are read and masked, and what comes of reading them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from adaptft.data.sample import RenderedSample
from adaptft.facts import DatasetShape
from adaptft.reports import DataReport
from adaptft.requests import TrainRequest

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Sources and masking.

    ``columns`` is JSON that gives columns other names before rows are recognised (``{"q": "query"}``);
    ``max_bad_rows`` is a share of the rows; ``num_proc`` None takes the usable cores.
    """

    sources: tuple[str, ...]
    hub: Literal["hf", "modelscope"] | None = None
    columns: str | None = None
    system: str | None = None
    train_on_prompt: bool = False
    mask_history: bool = False
    max_bad_rows: float = 0.01
    num_proc: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedData:
    """Rows of ``input_ids`` (int32) and ``trained`` (bool), memory-mapped, in the order of the sources."""

    rows: datasets.Dataset
    shape: DatasetShape
    report: DataReport
    samples: tuple[RenderedSample, ...]
    """Some of the rows as the model sees them, longest first; never empty."""

    @property
    def sample(self) -> RenderedSample:
        """The one to show."""
        return self.samples[0]


def training_settings(request: TrainRequest, sources: tuple[str, ...]) -> DataSettings:
    """How a training reads ``sources``: its data, or its held-out data."""
    return DataSettings(
        sources=sources,
        hub=request.hub,
        columns=request.columns,
        system=request.system,
        train_on_prompt=request.train_on_prompt,
        mask_history=request.mask_history,
        max_bad_rows=request.max_bad_rows,
        num_proc=request.dataset_num_proc,
    )
