"""`exitbench env` also lists the energy counters that a timing would read on this machine."""

import pytest

from exitbench.harness.cli.main import main
from exitbench.harness.running.energy import meter
from exitbench.harness.running.energy.counters import CounterSource


@pytest.mark.parametrize(
    ("on_gpu", "message"), [(False, "package-0, psys"), (True, "package-0, psys; no counters of the GPU: it is old")]
)
def test_env_summarizes_energy_counters_in_one_line(
    on_gpu: bool, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    monkeypatch.setattr(meter, "_gpu_uuids", lambda: [])
    monkeypatch.setattr(meter, "powercap_counters", lambda: CounterSource((), "package-0, psys"))
    monkeypatch.setattr(meter, "nvml_counters", lambda uuids: CounterSource((), "no counters of the GPU: it is old"))
    assert meter.energy_summary() == message
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["env", "show", "now"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  energy: package-0, psys"
