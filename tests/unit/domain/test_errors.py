import re

import pytest
from shepherd_core.domain import errors
from shepherd_core.domain.errors import ConfigError, Fault, ShepherdError, cause_of
from shepherd_core.domain.errors.kinds import FailureKind

from tests.support.errors import ALL

OURS = [error for error in ALL if issubclass(error, ShepherdError)]


def drawn() -> dict[str, tuple[str, bool]]:
    found: dict[str, tuple[str, bool]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)(.*)$", line)
        if match:
            depth = len(match[1]) // 4 + ("── " in line)
            path[depth:] = [match[2]]
            found[match[2]] = (path[depth - 1] if depth else "Exception", "(retryable)" in match[3])
    return found


def test_the_tree_is_drawn_as_it_is() -> None:
    assert ALL == OURS
    assert drawn() == {error.__name__: (error.__bases__[0].__name__, error.retryable) for error in OURS}


@pytest.mark.parametrize("error", OURS)
def test_an_error_says_in_one_sentence_what_happened(error: type[ShepherdError]) -> None:
    sentence = (error.__doc__ or "").strip().splitlines()[0]
    assert sentence.endswith(".")
    if "__init__" not in vars(error):
        assert (str(error()), str(error("more"))) == (sentence, "more")


NOT_RAISED = {FailureKind.FUNCTION_DIED, FailureKind.STEPS_USED_UP, FailureKind.RECOVERED_OFTEN}
NOT_RAISED |= {FailureKind.REPORTS_AGAIN, FailureKind.PROVISIONING_FAILED}


def test_every_raised_error_has_a_kind_of_its_own() -> None:
    """The kind is what is stored: it stays when the class is renamed, and no two classes share it."""
    parents = {parent for error in OURS for parent in error.__bases__}
    assert {error for error in OURS if "kind" not in vars(error)} <= parents
    assert sorted([error.kind for error in OURS if "kind" in vars(error)]) == sorted({*FailureKind} - NOT_RAISED)


def test_a_foreign_error_is_unexpected_and_cut_to_length() -> None:
    """One machine may provoke it, so the machine is to blame as far as is known."""
    cause = cause_of(KeyError("x" * 2000))
    assert (cause.kind, cause.fault, len(cause.text)) == (FailureKind.UNEXPECTED, Fault.MACHINE, 1000)
    assert cause.text.startswith("KeyError: ")


def test_all_faults_of_the_settings_are_in_one_error() -> None:
    error = ConfigError(["SHEPHERD_A is not set", "SHEPHERD_B is 7"])
    assert error.faults == ("SHEPHERD_A is not set", "SHEPHERD_B is 7")
    assert str(error) == "the settings are wrong:\n  - SHEPHERD_A is not set\n  - SHEPHERD_B is 7"
