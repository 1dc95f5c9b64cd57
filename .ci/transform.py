"""
Print template.yaml as CloudFormation gets to see it: with what SAM makes of it.

Linting that finds what linting template.yaml does not: wrong references and
figures in functions and schedules. Asks no AWS account. Runs in .venv-sam.
"""

import sys
from pathlib import Path

from samcli.lib.translate.sam_template_validator import SamTemplateValidator
from samcli.yamlhelper import yaml_parse


class NoManagedPolicies:
    """The template names no managed policy of AWS's, so nobody needs to be asked for one."""

    def load(self) -> dict[str, str]:
        """Return the policies by name."""
        return {}


template = yaml_parse((Path(__file__).parents[1] / "template.yaml").read_text(encoding="utf-8"))
transformed = SamTemplateValidator(template, NoManagedPolicies(), region="us-east-1").get_translated_template_if_valid()
sys.stdout.write(transformed)
