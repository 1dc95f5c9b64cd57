"""Our SSH key in the key store of a provider: the kit's part of every adapter that puts it there."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SecretUnavailable, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey

BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
OURS = f"ssh-ed25519 {BLOB} shepherd"
OTHER = f"ssh-ed25519 {BLOB[:-4]}AAAA somebody"


class Store:
    def __init__(self) -> None:
        self.keys: list[StoredKey] = []
        self.listings = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Called before a key is added."""
        self.forgetful = False
        """Whether it takes keys and does not show them."""
        self._lock = threading.Lock()

    def key(self, public_key: Callable[[], str] = lambda: OURS) -> RegisteredKey:
        return RegisteredKey("our-name", public_key, self._listed, self._add)

    def put(self, name: str | None, line: str) -> str:
        """Put a key into it, and return its id; the first ones are the newest."""
        with self._lock:
            number = len(self.keys)
            self.keys.append(StoredKey(f"key-{number}", name, line, f"2026-01-{28 - number}"))
            return self.keys[-1].id

    def _listed(self, _: Deadline) -> list[StoredKey]:
        self.listings += 1
        return list(self.keys)

    def _add(self, name: str, line: str, _: Deadline) -> None:
        self.meanwhile()
        if any(key.line == line for key in self.keys):
            raise ProviderRefused("taken")
        if not self.forgetful:
            self.put(name, line)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        # A provider may keep another comment than ours, and takes no key twice, whatever its name is.
        *(([(name, f"ssh-ed25519 {BLOB}")], "key-0") for name in ("our-name", "chosen-by-hand", None)),
        # All functions use the same one, should the provider let several in: the oldest under our name.
        ([("our-name", OURS), ("our-name", OTHER), ("our-name", OURS), ("another", OURS)], "key-2"),
        # Either the name or the key is not ours; machines with the wrong key would be lost to us.
        ([("our-name", OTHER)], None),
    ],
)
def test_a_stored_key_is_used_and_none_is_touched(
    store: Store, deadline: Deadline, stored: list[tuple[str | None, str]], found: str | None
) -> None:
    """It is known by more than name and comment."""
    for name, line in stored:
        store.put(name, line)
    if found is None:
        with pytest.raises(ProviderRefused, match="'our-name'"):
            store.key().ensure(deadline)
    else:
        assert store.key().ensure(deadline) == found
    assert [(key.name, key.line) for key in store.keys] == stored


def test_our_key_is_added_once(store: Store, deadline: Deadline) -> None:
    """Two functions that start at the same time both find no key and both add it."""
    functions = [store.key(), store.key()]
    assert {each.ensure(deadline) for each in (functions[0], *functions)} == {"key-0"}
    assert [(key.name, key.line) for key in store.keys] == [("our-name", OURS)]
    assert store.listings == 3  # before and after adding it, and by the other function
    store.keys.clear()
    store.meanwhile = lambda: store.put("our-name", OURS)
    assert store.key().ensure(deadline) == "key-0"
    assert len(store.keys) == 1
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(lambda number: functions[number % 2].ensure(deadline), range(6)))) == 1


def test_an_added_key_is_waited_for_until_it_is_listed(store: Store, deadline: Deadline) -> None:
    """Without its id nothing may be created; nor without the key itself."""
    store.forgetful = True
    with pytest.raises(ProviderUnavailable, match="'our-name'"):
        store.key().ensure(deadline)

    def fail() -> str:
        raise SecretUnavailable("later")

    with pytest.raises(ProviderUnavailable, match="later"):
        store.key(fail).ensure(deadline)


def test_a_rotated_key_is_added_too(store: Store, deadline: Deadline) -> None:
    lines = iter([OURS, OTHER])
    key = RegisteredKey("our-name", lambda: next(lines), store._listed, store._add)
    key.ensure(deadline)
    store.keys[0] = StoredKey("key-0", "the old one", OURS, "2026-01-01")
    assert key.ensure(deadline) == "key-1"


def test_a_request_waits_for_the_key_until_its_deadline(store: Store, deadline: Deadline) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        assert answer.wait(20)
        return OURS

    stuck = store.key(slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stuck.ensure, deadline)
        assert asked.wait(20)
        with pytest.raises(TimeLimitExceeded):
            stuck.ensure(Deadline(SystemClock(), 0.1))
        answer.set()
        assert first.result() == "key-0"
