"""Ask for a prediction and say what you need of it: at least this accurate, within this many milliseconds, at most this expensive.

    import modelless

    with modelless.Client("http://127.0.0.1:8080") as client:
        answer = client.query("fashion", "boot.png", accuracy=0.9, latency_ms=50)
        print(answer.label, answer.decision)
"""

from ._answers import Answer, AnswerKind, Decision, Label, Tensor
from ._async_client import AsyncClient
from ._client import Client
from ._ended import Decided, EndedQuery, Stage
from ._errors import (
    BadRequest,
    Conflict,
    GoalsUnreachable,
    InputError,
    InputFailed,
    MissingPackage,
    ModellessError,
    Nearest,
    NotAllowed,
    NotFound,
    Overloaded,
    Refused,
    ServerFailed,
    Timeout,
    TooLate,
    Unreachable,
)
from ._goals import Goals
from ._job import Job, JobEstimate, JobOutput, JobResults
from ._jobs import JobNotSent
from ._policies import Policy
from ._register import NotMeasured
from ._register import Options as RegisterOptions
from ._retry import Retries
from ._shown import Candidate, DefaultVersion, Explanation, Model, Registered, Task, Trial, Variant, Verdict
from ._version import VERSION as __version__

__all__ = [
    "Answer",
    "AnswerKind",
    "AsyncClient",
    "BadRequest",
    "Candidate",
    "Client",
    "Conflict",
    "Decided",
    "Decision",
    "DefaultVersion",
    "EndedQuery",
    "Explanation",
    "Goals",
    "GoalsUnreachable",
    "InputError",
    "InputFailed",
    "Job",
    "JobEstimate",
    "JobNotSent",
    "JobOutput",
    "JobResults",
    "Label",
    "MissingPackage",
    "Model",
    "ModellessError",
    "Nearest",
    "NotAllowed",
    "NotFound",
    "NotMeasured",
    "Overloaded",
    "Policy",
    "Refused",
    "RegisterOptions",
    "Registered",
    "Retries",
    "ServerFailed",
    "Stage",
    "Task",
    "Tensor",
    "Timeout",
    "TooLate",
    "Trial",
    "Unreachable",
    "Variant",
    "Verdict",
    "__version__",
]
