"""What is there of a deployment in an AWS account, and the changes to it that are no stack."""

from __future__ import annotations

import dataclasses
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from shepherd_core.adapters import aws, ssh_keys
from shepherd_core.adapters.aws.secrets import SsmSecretStore
from shepherd_core.domain.errors import ShepherdError, SourceUnavailable

from shepherdctl.deployment.plan import (
    CODE,
    SETTINGS,
    CloseBucket,
    DeleteCode,
    Found,
    FoundBucket,
    FoundObject,
    FoundStack,
    KeepVersions,
    MakeBucket,
    PutObject,
    told,
)
from shepherdctl.deployment.stored_settings import Stored, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from shepherdctl.deployment.answers import Answers

_CLOSED = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
_DEFAULT_REGION = "us-east-1"
"""The region whose buckets are made without naming it."""
_LARGEST = 10 * 1024 * 1024
"""Bytes of a document; those of a larger one are not compared."""


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """
    Raise what AWS answers as an error that says what was being done.

    Raises:
        SourceUnavailable: it may work later.
        ShepherdError: something must be changed first, such as the caller's permissions.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is about to be loaded

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        meaning, name = aws.classify(error)
        if meaning is aws.AwsFault.PASSING:
            raise SourceUnavailable(f"{doing}: AWS gave no answer ({name})") from error
        told = name
        if meaning is aws.AwsFault.REFUSED and isinstance(error, ClientError):
            told = f"{name}: {error.response['Error'].get('Message', '')}"
        raise ShepherdError(f"{doing}: {told}") from error


def caller() -> str:
    """Return the account whose credentials these are."""
    with errors("asking AWS who this is"):
        return str(aws.client("sts").get_caller_identity()["Account"])


def look(answers: Answers) -> Found:
    """
    Return what is there of the deployment; changes nothing.

    Raises:
        ShepherdError: the bucket is somebody else's, or AWS refuses.
    """
    account = caller()
    bucket = _bucket(answers.bucket, account)
    return Found(
        account,
        bucket,
        _parameters(answers.stack),
        {} if bucket is None else _objects(answers.bucket, account),
        stack(answers.stack),
    )


def described(name: str) -> Any:
    """Return what CloudFormation says of the stack with this name or id; None: there is none."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - as above

    with errors(f"looking at the stack {name}"):
        try:
            return aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if "does not exist" in str(error):  # CloudFormation has no code of its own for that
                return None
            raise


def secrets(names: Collection[str]) -> dict[str, str]:
    """
    Return what SSM has for these parameters.

    Raises:
        SecretError: one is not there, or cannot be read.
    """
    store = SsmSecretStore(max_age_seconds=0)
    return {name: store.get(name) for name in names}


def stack(name: str) -> FoundStack | None:
    """Return the stack as it is; None: there is none."""
    found = described(name)
    if found is None:
        return None
    parameters = {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])}
    seen = FoundStack(found["StackStatus"], parameters, id=found["StackId"])
    if not seen.is_made:
        return seen
    with errors(f"reading the template of {name}"):
        answer = aws.client("cloudformation").get_template(StackName=found["StackId"], TemplateStage="Original")
    return dataclasses.replace(seen, template=answer.get("TemplateBody"))


def _bucket(name: str, account: str) -> FoundBucket | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - as above

    s3, of = aws.client("s3"), {"Bucket": name, "ExpectedBucketOwner": account}
    with errors(f"looking at the bucket {name}"):
        try:
            region = s3.head_bucket(**of).get("BucketRegion") or s3.meta.region_name
        except ClientError as error:
            meaning, _ = aws.classify(error)
            if meaning is aws.AwsFault.DENIED:
                message = f"the bucket {name} is not of the account {account}, or may not be read: choose another name"
                raise ShepherdError(message) from error
            if meaning is aws.AwsFault.ABSENT:
                return None
            raise
        if region != s3.meta.region_name:
            message = f"the bucket {name} is in {region}, and Lambda takes code from {s3.meta.region_name} alone"
            raise ShepherdError(f"{message}: choose another name")
        versioned = s3.get_bucket_versioning(**of).get("Status") == "Enabled"
        try:
            blocked = s3.get_public_access_block(**of)["PublicAccessBlockConfiguration"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchPublicAccessBlockConfiguration":
                raise
            blocked = {}
    return FoundBucket(versioned, all(blocked.get(each) for each in _CLOSED))


def _parameters(name: str) -> frozenset[str]:
    with errors(f"listing the parameters below /{name}"):
        pages = aws.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=f"/{name}", Recursive=True)
        return frozenset(each["Name"] for page in pages for each in page["Parameters"])


def _objects(bucket: str, account: str) -> dict[str, FoundObject]:
    s3, of = aws.client("s3"), {"Bucket": bucket, "ExpectedBucketOwner": account}
    found: dict[str, FoundObject] = {}
    with errors(f"listing s3://{bucket}"):
        for prefix in (SETTINGS, "documents/", CODE):
            for page in s3.get_paginator("list_objects_v2").paginate(Prefix=prefix, **of):
                for each in page.get("Contents", []):
                    found[each["Key"]] = FoundObject(each["ETag"])
                    if not each["Key"].endswith(".zip") and each["Size"] <= _LARGEST:
                        answer = s3.get_object(Key=each["Key"], **of)
                        with closing(answer["Body"]) as body:
                            found[each["Key"]] = FoundObject(answer["ETag"], body.read())
    return found


def change_bucket(
    change: MakeBucket | CloseBucket | KeepVersions | PutObject | DeleteCode, account: str, kms_key: str
) -> None:
    """
    Carry out *change*. May run twice. *kms_key* encrypts what is put; empty: S3's own.

    Raises:
        SourceMissing: somebody else has put another object there meanwhile, or AWS refuses.
        SourceUnavailable: it may work later.
        ShepherdError: as ``errors``.
    """
    s3, of = aws.client("s3"), {"Bucket": change.bucket, "ExpectedBucketOwner": account}
    with errors(told(change)):
        match change:
            case MakeBucket():
                where: dict[str, Any] = {"CreateBucketConfiguration": {"LocationConstraint": change.region}}
                s3.create_bucket(Bucket=change.bucket, **({} if change.region == _DEFAULT_REGION else where))
            case CloseBucket():
                s3.put_public_access_block(PublicAccessBlockConfiguration=_CLOSED, **of)
            case KeepVersions():
                s3.put_bucket_versioning(VersioningConfiguration={"Status": "Enabled"}, **of)
            case DeleteCode():
                for page in s3.get_paginator("list_object_versions").paginate(Prefix=CODE, **of):
                    for each in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
                        if each["Key"] in change.keys:  # every version: it can be built again
                            s3.delete_object(Key=each["Key"], VersionId=each["VersionId"], **of)
            case PutObject():
                encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
                if change.is_code:
                    s3.put_object(Key=change.key, Body=change.content, **encryption, **of)
                    return
                etag = None if change.replaces is None else change.replaces.etag
                stored = Stored(f"s3://{change.bucket}/{change.key}", b"", etag, encryption, account)
                replace(stored, change.content)


def make_ssh_key(name: str, kms_key: str) -> tuple[bool, str]:
    """Return whether there was no SSH key *name*, and the public half of the one that is there now. May run twice."""
    store = SsmSecretStore(max_age_seconds=0)
    created = store.find(name) is None
    if created:
        store.put(name, ssh_keys.generate(), kms_key=kms_key)
    return created, publish_both(store, name)


def publish_both(store: SsmSecretStore, name: str) -> str:
    """Store the public halves of the key *name* and, during a rotation, of the one before it; return the first."""
    private, before = store.get(name), ssh_keys.previous_parameter(name)
    previous = store.find(before)
    if previous not in {None, private}:
        publish(store, before, str(previous))
    elif store.find(ssh_keys.public_parameter(before)) is not None:  # of a rotation that was not begun, or has ended
        store.delete(ssh_keys.public_parameter(before))
    return publish(store, name, private)


def publish(store: SsmSecretStore, name: str, private: str) -> str:
    """Store the public half of *private*, the key *name*, beside it, and return it."""
    line, public = ssh_keys.public_line(private), ssh_keys.public_parameter(name)
    if store.find(public) != line:
        store.put(public, line, secret=False, replace=True)
    return line
