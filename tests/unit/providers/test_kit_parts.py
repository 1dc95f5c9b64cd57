import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from shepherd_core.domain.clock import Deadline, SystemClock
from shepherd_core.domain.errors import SecretUnavailable, TimeLimitExceeded
from shepherd_core.domain.errors.provider import ProviderRefused, ProviderUnavailable
from shepherd_core.providers.kit.auth import Login
from shepherd_core.providers.kit.context import ProviderContext
from shepherd_core.providers.kit.hosting import mark_of, read_mark
from shepherd_core.providers.kit.logins import Logins
from shepherd_core.providers.kit.registered_key import RegisteredKey, StoredKey
from shepherd_core.providers.latitude import name_of, token_of

from tests.conftest import ManualClock

OURS = UUID(int=5)


@pytest.mark.parametrize("token", [UUID(int=0), UUID(int=2**128 - 1), OURS])
def test_a_mark_holds_fleet_slot_and_token_as_host_name(token: UUID) -> None:
    """At Latitude.sh, where it may have 32 characters, it is the only place for them."""
    for fleet in ("a", "a-1", "blue-", "x" * 20):
        mark = mark_of(f"{fleet}/99999", token)
        assert len(mark) <= 63
        assert read_mark(fleet, mark) == (f"{fleet}/99999", token)
    name = name_of(token, "99999")
    assert (len(name), token_of(name)) == (32, token)


SLOTS = ("0-", "-", "100000-", "", "1-2-")
NAMES = (f"{'a' * 26}-0", f"{'a' * 26}-100000", f"{'A' * 26}-1", f"{'a' * 26}-1 ")


@pytest.mark.parametrize("text", ["web-1", "", "a-1-x", f"a-1-{OURS} ", *(f"a-{each}{OURS}" for each in SLOTS), *NAMES])
def test_other_texts_mark_other_servers(text: str) -> None:
    assert (read_mark("a", text), token_of(text)) == (None, None)


class Scripted:
    def __init__(self, *answers: Login | Exception) -> None:
        self._answers: Iterator[Login | Exception] = iter(answers)

    def login(self, url: str, deadline: Deadline) -> Login:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_one_login_follows_a_former_one_whoever_asks(deadline: Deadline) -> None:
    """Two threads may have used the former one, and the first of them got no new one."""
    former, new = Login({}, ("a",)), Login({}, ("b",))
    logins = Logins("https://api", Scripted(former, ProviderUnavailable("503"), new), SystemClock(), 1)
    assert logins.usable(deadline) is former
    with pytest.raises(ProviderUnavailable):
        logins.after(former, deadline)
    assert logins.after(former, deadline) is new
    assert logins.after(former, deadline) is new


def test_a_secret_is_read_past_its_cache(clock: ManualClock) -> None:
    """The cache is minutes old; until its end every request with a credential that was replaced would be refused."""
    stored, cached = ["old"], dict[str, str]()
    context = ProviderContext(
        clock=clock,
        read=lambda _: b"",
        read_secret=lambda name: cached.setdefault(name, stored[-1]),
        invalidate_secret=lambda _: cached.clear(),
        public_key=lambda: "",
    )
    cached["/token"] = "older"
    read = context.secret("/token")
    assert read() == "old"
    stored.append("new")
    assert read() == "new"


BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIHb1Jc7TZl0g8cFz7h5oVb5Gg2c0J5s0n1p6c9w3Qk7d"
OUR_LINE = f"ssh-ed25519 {BLOB} shepherd"
OTHER = f"ssh-ed25519 {BLOB[:-4]}AAAA somebody"


class Store:
    def __init__(self) -> None:
        self.keys: list[StoredKey] = []
        self.listings = 0
        self.meanwhile: Callable[[], object] = lambda: None  # called before a key is added
        self.forgetful = False  # whether it takes keys and does not show them
        self._lock = threading.Lock()

    def key(self, public_key: Callable[[], str] = lambda: OUR_LINE) -> RegisteredKey:
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
        ([("our-name", OUR_LINE), ("our-name", OTHER), ("our-name", OUR_LINE), ("another", OUR_LINE)], "key-2"),
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
    assert [(key.name, key.line) for key in store.keys] == [("our-name", OUR_LINE)]
    assert store.listings == 3  # before and after adding it, and by the other function
    store.keys.clear()
    store.meanwhile = lambda: store.put("our-name", OUR_LINE)
    assert (store.key().ensure(deadline), len(store.keys)) == ("key-0", 1)
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
    lines = iter([OUR_LINE, OTHER])
    key = RegisteredKey("our-name", lambda: next(lines), store._listed, store._add)
    key.ensure(deadline)
    store.keys[0] = StoredKey("key-0", "the old one", OUR_LINE, "2026-01-01")
    assert key.ensure(deadline) == "key-1"


def test_a_request_waits_for_the_key_until_its_deadline(store: Store, deadline: Deadline) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        assert answer.wait(20)
        return OUR_LINE

    stuck = store.key(slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stuck.ensure, deadline)
        assert asked.wait(20)
        with pytest.raises(TimeLimitExceeded):
            stuck.ensure(Deadline(SystemClock(), 0.1))
        answer.set()
        assert first.result() == "key-0"
