"""What moto can deploy: the parameters of our template, and one queue. It knows neither SAM nor loops."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.deployment.deployments import TEMPLATE


def build(folder: Path, **resources: Any) -> Path:
    """Write it into *folder* as a build; *resources* come besides the queue."""
    folder.mkdir(exist_ok=True)
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": "AWS::StackName"}}}
    template = {"Parameters": TEMPLATE["Parameters"], "Resources": {"Queue": queue, **resources}}
    (folder / "template.yaml").write_text(yaml.safe_dump(template))
    return folder
