"""Errors of the endpoint in OpenAI's form, so that every client can show their sentence."""

from __future__ import annotations

from typing import Any

_TYPES = {401: "authentication_error", 404: "not_found_error", 500: "server_error"}


class ApiError(Exception):
    """A request that is refused; the status is 400 unless something else is said."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def unsupported(what: str, param: str) -> ApiError:
    """This engine lacks ``what``, and vLLM has it."""
    return ApiError(
        f"{what} is not supported by the transformers engine of adaptft serve; vLLM has it (--infer_backend vllm).",
        param=param,
        code="unsupported_parameter",
    )
