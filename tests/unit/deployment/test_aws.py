"""What AWS's errors mean to us."""

from __future__ import annotations

import subprocess
import sys

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    ReadTimeoutError,
)
from shepherd_core.adapters.aws import Fault, fault


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (400, "ThrottlingException", Fault.PASSING),
        (400, "Throttling", Fault.PASSING),
        (429, "TooManyRequestsException", Fault.PASSING),
        (400, "TooManyUpdates", Fault.PASSING),
        (400, "RequestTimeout", Fault.PASSING),
        (503, "SlowDown", Fault.PASSING),
        (500, "InternalServerError", Fault.PASSING),
        (400, "ParameterNotFound", Fault.ABSENT),
        (404, "NoSuchKey", Fault.ABSENT),
        (404, "NoSuchBucket", Fault.ABSENT),
        (404, "404", Fault.ABSENT),
        (400, "AccessDeniedException", Fault.DENIED),
        (403, "AccessDenied", Fault.DENIED),
        (403, "403", Fault.DENIED),
        (403, "UnauthorizedOperation", Fault.DENIED),
        (400, "ValidationException", Fault.REFUSED),
        (400, "UnrecognizedClientException", Fault.REFUSED),
        (403, "InvalidObjectState", Fault.REFUSED),
    ],
)
def test_a_refusal_means_what_its_code_says(status: int, code: str, meaning: Fault) -> None:
    """SSM answers 400 to nearly everything, so that the status alone says little."""
    error = ClientError(
        {"Error": {"Code": code, "Message": "you sent: hunter2"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op"
    )
    found, said = fault(error)
    assert found is meaning
    assert said.startswith(code)
    assert meaning is Fault.DENIED or "hunter2" not in said


def test_a_denial_says_who_lacks_what_and_leaves_out_the_rest() -> None:
    """EC2 adds a thousand characters that only another call could decode."""
    sentence = "User: f is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:::instance/*"
    message = f"{sentence} Encoded authorization failure message: {'x' * 1000}"
    error = ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": message}}, "RunInstances")
    assert fault(error) == (Fault.DENIED, f"UnauthorizedOperation: {sentence}")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (EndpointConnectionError(endpoint_url="https://ssm"), Fault.PASSING),
        (ConnectTimeoutError(endpoint_url="https://ssm"), Fault.PASSING),
        (ReadTimeoutError(endpoint_url="https://ssm"), Fault.PASSING),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), Fault.PASSING),
        (FlexibleChecksumError(error_msg="hunter2"), Fault.PASSING),
        (KeyError("Parameter"), Fault.PASSING),
        (NoRegionError(), Fault.REFUSED),
        (NoCredentialsError(), Fault.REFUSED),
        (ParamValidationError(report="Value: hunter2"), Fault.REFUSED),
    ],
)
def test_a_call_without_an_answer_may_be_tried_again_unless_it_was_never_sent(error: Exception, meaning: Fault) -> None:
    """A wrong setting does not get better by itself."""
    found, said = fault(error)
    assert found is meaning
    assert said == type(error).__name__


def test_boto3_is_loaded_only_when_it_is_needed() -> None:
    """Half a second at every cold start, for functions that may not need it."""
    code = """if True:
        import sys
        from pathlib import Path
        from shepherd_core.adapters import aws, documents, secrets
        from shepherd_core.providers import static
        secrets.SsmSecretStore()
        documents.AgentCache(Path("unused"))
        documents.read(__import__("os").devnull)
        print(sorted({"boto3", "botocore", "requests", "aws_lambda_powertools"} & set(sys.modules)))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "[]\n"
