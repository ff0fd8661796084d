"""Schedules are at hand at once: nothing heavy is imported for them."""

import importlib.util
import subprocess
import sys

import pytest

from annopipe import scheduling

HEAVY = ("torch", "numpy", "matplotlib", "rich", "tabulate", "click")
PROGRAMS = {
    "packages": "import annopipe.scheduling, annopipe.simulation",
    "the tuner": "import annopipe.tuning.tuner, annopipe.tuning.run_config",
    "every module": (
        "import importlib, pkgutil, annopipe.scheduling, annopipe.simulation\n"
        "for package in (annopipe.scheduling, annopipe.simulation):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if '.picture' not in found.name: importlib.import_module(found.name)"
    ),
    "a simulated schedule": (
        "import annopipe as ap\n"
        "schedule = ap.Schedule.of(ap.placement.linear(2), 1, [['0F0', '0B0'], ['1F0', '1B0']])\n"
        "schedule.check()\n"
        "assert ap.simulate(schedule.lowered(), ap.costs.table(latency=0.5)).makespan == 7.0"
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_are_simulated_without_importing_anything_heavy(name: str) -> None:
    program = f"{PROGRAMS[name]}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


def test_no_module_hides_a_name_of_its_package():
    """Importing a submodule sets an attribute of its package, which would come before a name imported when used."""
    for name in scheduling.__all__:
        if name != "placement":
            assert importlib.util.find_spec(f"annopipe.scheduling.{name}") is None, name
