import subprocess
import sys

import pytest
from botocore import exceptions
from shepherd_core.adapters.aws import AwsFault, classify

# By meaning and by status.
REFUSALS = {
    AwsFault.PASSING: {
        400: ["ThrottlingException", "Throttling", "TooManyUpdates", "RequestTimeout"],
        429: ["TooManyRequestsException"],
        500: ["InternalServerError"],
        503: ["SlowDown"],
    },
    AwsFault.ABSENT: {400: ["ParameterNotFound"], 404: ["NoSuchKey", "NoSuchBucket", "404"]},
    AwsFault.DENIED: {400: ["AccessDeniedException"], 403: ["AccessDenied", "403", "UnauthorizedOperation"]},
    AwsFault.REFUSED: {400: ["ValidationException", "UnrecognizedClientException"], 403: ["InvalidObjectState"]},
}


@pytest.mark.parametrize(
    ("meaning", "status", "code"),
    [(meaning, status, code) for meaning, of in REFUSALS.items() for status in of for code in of[status]],
)
def test_a_refusal_means_what_its_code_says(meaning: AwsFault, status: int, code: str) -> None:
    """SSM answers 400 to nearly everything, so that the status alone says little."""
    error = exceptions.ClientError(
        {"Error": {"Code": code, "Message": "you sent: hunter2"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op"
    )
    found, said = classify(error)
    assert found is meaning
    assert said.startswith(code)
    assert meaning is AwsFault.DENIED or "hunter2" not in said


def test_a_denial_names_principal_and_action_only() -> None:
    """EC2 adds a thousand characters that only another call could decode."""
    sentence = "User: f is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:::instance/*"
    message = f"{sentence} Encoded authorization failure message: {'x' * 1000}"
    error = exceptions.ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": message}}, "RunInstances")
    assert classify(error) == (AwsFault.DENIED, f"UnauthorizedOperation: {sentence}")


@pytest.mark.parametrize(
    ("error", "meaning", "said"),
    [
        *(
            (error, AwsFault.PASSING, type(error).__name__)
            for error in (
                exceptions.EndpointConnectionError(endpoint_url="https://ssm"),
                exceptions.ConnectTimeoutError(endpoint_url="https://ssm"),
                exceptions.ReadTimeoutError(endpoint_url="https://ssm"),
                exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
                exceptions.FlexibleChecksumError(error_msg="hunter2"),
                KeyError("Parameter"),
            )
        ),
        (exceptions.ParamValidationError(report="Value: hunter2"), AwsFault.REFUSED, "ParamValidationError"),
        (exceptions.NoRegionError(), AwsFault.REFUSED, "no region is set: set AWS_DEFAULT_REGION"),
        (exceptions.NoCredentialsError(), AwsFault.REFUSED, "no credentials were found: set AWS_PROFILE, or log in"),
    ],
)
def test_a_call_without_answer_is_retryable_unless_never_sent(error: Exception, meaning: AwsFault, said: str) -> None:
    assert classify(error) == (meaning, said)


def test_boto3_is_loaded_only_when_it_is_needed() -> None:
    """Half a second at every cold start, for functions that may not need it."""
    code = """if True:
        import sys
        from shepherd_core.adapters import agent_file, aws, documents
        from shepherd_core.adapters.aws import secrets
        from shepherd_core.providers import static
        secrets.SsmSecretStore()
        agent_file.OperatorsAgent("unused")
        documents.read(__import__("os").devnull)
        print(sorted({"boto3", "botocore", "requests", "aws_lambda_powertools"} & set(sys.modules)))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "[]\n"
