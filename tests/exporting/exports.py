"""An export in one call, as the command makes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptft.exporting import export, find_source, output_folder
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.models import read_config
from adaptft.plans import Dtype, ExportPlan, Residence
from adaptft.policy.formats import plan_export
from adaptft.reports import ExportReport
from adaptft.requests import ExportRequest
from adaptft.shapes import model_shape
from adaptft.units import GiB

CPU_MACHINE = Machine(
    gpus=(),
    cpu=Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2),
    memory=HostMemory(total_bytes=16 * GiB, available_bytes=12 * GiB),
    software=Software(python="3.11"),
)


def export_here(
    residence: Residence | None = None, compute_dtype: Dtype | None = None, **options: Any
) -> tuple[ExportPlan, ExportReport, Path]:
    """Find, plan and export as ``adaptft export`` does, on a machine without a GPU.

    ``residence`` and ``compute_dtype`` stand for a machine with less memory.
    """
    request = ExportRequest(**options)
    source = find_source(request)
    folder = output_folder(request, source)
    shape = model_shape(read_config(str(source.base.path)), source.base.name)
    plan = plan_export(CPU_MACHINE, shape, request, is_qlora=source.is_qlora)
    plan = replace(plan, residence=residence or plan.residence, compute_dtype=compute_dtype or plan.compute_dtype)
    return plan, export(plan, source, folder), folder
