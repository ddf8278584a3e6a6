"""Reading, rendering, tokenising and packing training data.

Files, folders and hub ids -> ``resolve`` -> raw rows -> ``detect`` -> conversations -> the model's own
chat template with a loss mask -> token ids, cached -> ``split``, ``fit_rows``, ``pack`` -> batches.
"""

from adaptft.data.builtin_rows import builtin
from adaptft.data.collating import collate_packs, collate_rows, document_boundaries
from adaptft.data.fitting import fit_rows, split
from adaptft.data.loading import tokenize
from adaptft.data.packing import pack
from adaptft.data.reporting import describe_rejected, report_lines
from adaptft.data.sample import RenderedSample, sample_lines, sample_text
from adaptft.data.settings import DataSettings, TokenizedData, training_settings

__all__ = [
    "DataSettings",
    "RenderedSample",
    "TokenizedData",
    "builtin",
    "collate_packs",
    "collate_rows",
    "describe_rejected",
    "document_boundaries",
    "fit_rows",
    "pack",
    "report_lines",
    "sample_lines",
    "sample_text",
    "split",
    "tokenize",
    "training_settings",
]
