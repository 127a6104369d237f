"""What methods take and return, for annotations and ``isinstance``: nothing here is made by its own name.

Updates and dtypes: ``Update``, ``DTypeLike``. Answers: ``Submission`` and ``BatchReceipt`` of what was sent;
``RoundInfo``, ``StreamInfo``, ``ModelInfo`` and ``ServerInfo``, with the parts of which they are made;
``StreamVersion`` and ``StreamPlace`` of a stream; ``ModelRows`` of a model; ``Inspection`` of a sealed round;
``Certificate`` and ``SubmissionReceipt``; ``DeviceTensorResult``, a result in a GPU's memory.
"""

from sparseagg._internal.base.types import DTypeLike, Update
from sparseagg._internal.client.async_models import ModelRows
from sparseagg._internal.results.forms import DeviceTensorResult
from sparseagg._internal.results.info import (
    BatchReceipt,
    Certificate,
    ClipSummary,
    Refusal,
    RoundInfo,
    StageTime,
    StreamInfo,
    StreamPlace,
    StreamVersion,
    Submission,
    SubmissionReceipt,
    TensorSummary,
    Timeline,
)
from sparseagg._internal.results.inspection import Inspection
from sparseagg._internal.results.model_info import ModelInfo, ModelTensor, ModelVersion
from sparseagg._internal.results.server_info import ServerActivity, ServerInfo, ServerLimits

__all__ = [
    "BatchReceipt",
    "Certificate",
    "ClipSummary",
    "DTypeLike",
    "DeviceTensorResult",
    "Inspection",
    "ModelInfo",
    "ModelRows",
    "ModelTensor",
    "ModelVersion",
    "Refusal",
    "RoundInfo",
    "ServerActivity",
    "ServerInfo",
    "ServerLimits",
    "StageTime",
    "StreamInfo",
    "StreamPlace",
    "StreamVersion",
    "Submission",
    "SubmissionReceipt",
    "TensorSummary",
    "Timeline",
    "Update",
]
