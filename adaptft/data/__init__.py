"""Reading, rendering, tokenising and packing training data.

Files, folders and hub ids -> ``resolve`` -> raw rows -> ``detect`` -> conversations -> the model's own
chat template with a loss mask -> token ids, cached -> ``split``, ``fit_rows``, ``pack``.
Tensors are made of them in ``training.batches``.
"""

from adaptft.data.builtin_rows import builtin
from adaptft.data.fitting import fit, fit_rows, split
from adaptft.data.loading import tokenize
from adaptft.data.overlap import overlap_warning
from adaptft.data.packing import pack
from adaptft.data.questions import Question, questions
from adaptft.data.rendering import read_rendering, write_rendering
from adaptft.data.reporting import describe_rejected, report_lines
from adaptft.data.sample import RenderedSample, sample_lines, sample_text
from adaptft.data.settings import DataSettings, TokenizedData, training_settings

__all__ = [
    "DataSettings",
    "Question",
    "RenderedSample",
    "TokenizedData",
    "builtin",
    "describe_rejected",
    "fit",
    "fit_rows",
    "overlap_warning",
    "pack",
    "questions",
    "read_rendering",
    "report_lines",
    "sample_lines",
    "sample_text",
    "split",
    "tokenize",
    "training_settings",
    "write_rendering",
]
