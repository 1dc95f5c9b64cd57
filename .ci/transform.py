"""
Print template.yaml as CloudFormation gets to see it: with loops written out, and with what SAM makes of it.

    .venv-sam/bin/python .ci/transform.py [--expand FILE]

With --expand, print FILE with its loops written out, and nothing else done to it. Linting the output finds what
linting the source does not: wrong references and figures in what is repeated, in functions and in schedules. Asks no
AWS account. Runs in .venv-sam.
"""

import sys
from pathlib import Path

from samcli.lib.translate.sam_template_validator import SamTemplateValidator
from samcli.yamlhelper import yaml_dump, yaml_parse

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.deployment.cloudformation import expanded  # noqa: E402 - the path is set above


class NoManagedPolicies:
    """The template names no managed policy of AWS's, so nobody needs to be asked for one."""

    def load(self) -> dict[str, str]:
        """Return the policies by name."""
        return {}


if sys.argv[1:2] == ["--expand"]:
    sys.stdout.write(yaml_dump(expanded(yaml_parse(Path(sys.argv[2]).read_text(encoding="utf-8")))))
else:
    template = expanded(yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8")))
    for resource in template["Resources"].values():
        for key in ("CodeUri", "Location"):  # which `sam build` and `sam deploy` replace
            if key in resource["Properties"]:
                resource["Properties"][key] = f"https://s3.amazonaws.com/bucket/{key}"
    validator = SamTemplateValidator(template, NoManagedPolicies(), region="us-east-1")
    # SAM drops this transform, which has yet to look up what the expanded template finds in mappings.
    sys.stdout.write("Transform: AWS::LanguageExtensions\n" + validator.get_translated_template_if_valid())
