"""Inputs of recomputing layers, kept in pinned host memory between the forward and the backward pass.

A checkpointed layer keeps its input alone: 59 MB for 8192 tokens of a 7B, 1.6 GB over 28 layers. Copying it out and
back takes a millisecond at 50 GB/s, the layer ten times as long, so both copies hide behind the work: out on a stream
of their own, back one layer ahead. Unsloth and TRL do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

SMALLEST_ELEMENTS = 1024
"""Smaller tensors are not worth a copy (and checkpoint saves an empty one of its own)."""


class _Stored(NamedTuple):
    """The place of an input in the forward pass, and the device it goes back to."""

    number: int
    device: torch.device


class HostStore:
    """Saved inputs by the order in which they were saved; buffers are kept from step to step."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.waiting: list[_Stored] = []
        self.fetched: dict[int, Tensor] = {}
        self.stream: Any = None

    def checkpoint(self, function: Callable[..., Any], *inputs: Any, inner: Callable[..., Any], is_first: bool) -> Any:
        """``inner(function, *inputs)``, with the inputs that it saves kept here; ``is_first`` begins a new pass."""
        if is_first:
            self.waiting.clear()
            self.fetched.clear()
        with saved_tensors_hooks(self._store, self._restore):
            return inner(function, *inputs)

    def _store(self, tensor: Tensor) -> Tensor | _Stored:
        if not tensor.is_floating_point() or tensor.numel() < SMALLEST_ELEMENTS:
            return tensor
        stored = _Stored(len(self.waiting), tensor.device)
        self.waiting.append(stored)
        buffer = self._buffer(stored.number, tensor)
        with self._aside(tensor.device, after_now=True):
            buffer.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            tensor.record_stream(self.stream)  # its memory is free once the copy is done
        return stored

    def _restore(self, saved: Tensor | _Stored) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        tensor = self.fetched.pop(saved.number, None)
        if tensor is None:
            tensor = self._fetch(saved)
        if tensor.is_cuda:
            now = torch.cuda.current_stream(saved.device)
            now.wait_stream(self.stream)
            tensor.record_stream(now)
        if saved.number:
            before = self.waiting[saved.number - 1]
            self.fetched[before.number] = self._fetch(before)
        return tensor

    def _fetch(self, stored: _Stored) -> Tensor:
        with self._aside(stored.device, after_now=False):
            return self.buffers[stored.number].to(stored.device, non_blocking=True, copy=True)

    def _buffer(self, number: int, like: Tensor) -> Tensor:
        """A pinned buffer of that shape; a pass of another length makes new ones."""
        fits = number < len(self.buffers) and self.buffers[number].shape == like.shape
        if not fits or self.buffers[number].dtype != like.dtype:
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
            self.buffers[number : number + 1] = [buffer]
        return self.buffers[number]

    def _aside(self, device: torch.device, *, after_now: bool) -> AbstractContextManager[Any]:
        """The copying stream; after what the device has been told so far, where a tensor is still being made."""
        if device.type != "cuda":
            return nullcontext()
        if self.stream is None:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if after_now:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(self.stream)
