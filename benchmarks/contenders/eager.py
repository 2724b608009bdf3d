"""Our operators called eagerly, with what ``backend="auto"`` takes. A call includes two changes of the mode, 16 us."""

from __future__ import annotations

from ms_mhc.bench import mindspore_steps
from ms_mhc.bench.contenders import Contender

CONTENDERS = (Contender("eager", lambda task, inputs: mindspore_steps.make(task, inputs, "auto", eagerly=True)),)
