"""What is said of a machine that others use, and when it is given up, in virtual time."""

from __future__ import annotations

import pytest

from has.device import host, patience
from has.device.patience import Patience
from has.errors import RunError


class Machine:
    """A clock to be moved, and processes that use cores beside ours."""

    def __init__(self) -> None:
        self.now = self.own_s = self.used_s = 0.0
        self.said: list[str] = []

    def pass_s(self, seconds: float, *, own: float, others: float) -> None:
        self.now += seconds
        self.own_s += own * seconds
        self.used_s += (own + others) * seconds

    def meter(self):
        machine, now, used_s = self, self.now, self.used_s

        class Meter:
            def cores(self, own_cpu_s: float) -> float:
                return (machine.used_s - used_s - own_cpu_s) / (machine.now - now)

        return Meter()

    def patience(self, usual_s: float = 20.0) -> Patience:
        return Patience(
            "measuring",
            usual_s,
            lambda text: self.said.append(f"{self.now:g}: {text}"),
            kept="; finished points are kept",
            clock=lambda: self.now,
            meter=self.meter,
        )


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 2)
    return Machine()


def wait(machine: Machine, made: Patience, until_s: float, *, own: float, others: float) -> None:
    while machine.now < until_s:
        machine.pass_s(1.0, own=own, others=others)
        made.look(lambda: machine.own_s)


def test_of_a_quiet_machine_nothing_is_said_in_twice_the_usual_time(machine):
    wait(machine, machine.patience(), 39.0, own=1.6, others=0.3)
    assert not machine.said


def test_a_busy_machine_is_said_soon_and_then_ever_more_rarely(machine):
    """160 s are the bound of what usually takes 20: 60 + 5 x 20."""
    wait(machine, machine.patience(), 159.0, own=0.2, others=1.8)
    assert machine.said[0] == (
        "15: measuring has taken 15 s (about 20 s on a quiet machine), other processes use 1.8 of 2 cores;"
        " they spoil what is measured: end them, or wait; given up after 160 s; finished points are kept"
    )
    assert [text.split(":")[0] for text in machine.said] == ["15", "30", "60", "120"]


def test_load_that_comes_late_is_seen(machine):
    """It would not show in the mean since the beginning; and our own CPU time before is not taken for theirs."""
    made = machine.patience(usual_s=600.0)
    wait(machine, made, 300.0, own=1.6, others=0.0)
    wait(machine, made, 314.0, own=1.0, others=1.0)
    assert not machine.said
    wait(machine, made, 315.0, own=1.0, others=1.0)
    assert len(machine.said) == 1
    assert "1.0 of 2 cores" in machine.said[0]


def test_load_with_breaks_spoils_less_and_is_not_said(machine):
    made = machine.patience(usual_s=600.0)
    for turn in range(1, 10):
        wait(machine, made, 20.0 * turn - 10.0, own=1.0, others=1.0)
        wait(machine, made, 20.0 * turn, own=1.6, others=0.0)
    assert not machine.said


def test_it_is_given_up_in_the_end(machine):
    made = machine.patience()
    with pytest.raises(RunError, match=r"too busy .* 160 s .* other processes use 1.8 of 2 cores") as caught:
        wait(machine, made, 200.0, own=0.2, others=1.8)
    assert machine.now == made.most_s == patience.GRACE_S + patience.PATIENCE * 20.0
    assert caught.value.mend == "end them, and give the same command again; finished points are kept"


def test_a_machine_that_is_slow_by_itself_is_not_blamed_on_others(machine):
    with pytest.raises(RunError, match=r"too slow .* other processes use 0.1 of 2 cores"):
        wait(machine, machine.patience(), 200.0, own=1.0, others=0.1)
    assert not any("end them" in text for text in machine.said)


def test_the_time_for_which_it_was_stopped_itself_does_not_count(machine):
    """Ctrl-Z, and on again ten minutes later, when whatever used the machine meanwhile is gone."""
    made = machine.patience()
    wait(machine, made, 10.0, own=1.6, others=0.0)
    machine.pass_s(600.0, own=0.0, others=2.0)
    made.look(lambda: machine.own_s)
    wait(machine, made, 639.0, own=1.6, others=0.0)
    assert not machine.said
    with pytest.raises(RunError, match="has taken 160 s"):
        wait(machine, made, 800.0, own=1.6, others=0.0)
    assert machine.now == 760.0
