"""`python -m bench sweep`: a study for each value of settings of its decoders."""

from __future__ import annotations

from collections.abc import Sequence

from bench.commands.run import cmd_run
from bench.config.arguments import RUNS, key_of
from bench.errors import ConfigError


def cmd_sweep(arguments: Sequence[str]) -> int:
    """Run a study once for each value: sweep acceptance.delta=0.05,0.1 tree=chain,static.
    One decoder for each value, or combination of values, of settings that are given several; a
    decoder without such a setting runs once. Resumes as `run` does; `report` makes the tables
    again from the same arguments with this run_dir.

    settings (and all others of a study: `python -m bench list settings`):
      study=NAME        which study (`list study`; default: main)
      decoders=[a,b]    decoders of the study, or any of conf/decoder
      PART.SETTING=A,B  values of a setting of decoders: acceptance.delta=0.05,0.1
      PART=A,B          options of a part: tree=chain,static
      run_dir=DIR       the run's folder (default: results/runs/<study>_sweep)

    example:
      python -m bench sweep study=main decoders=[ar,lantern] acceptance.delta=0.05,0.1,0.2
    """
    from bench.config.compose import sort_overrides

    if not any(len(values) > 1 for values in sort_overrides(arguments).entry):
        raise ConfigError(
            "nothing to sweep: no setting of a decoder has several values; give one, as in "
            "acceptance.delta=0.1,0.2, or use `run`"
        )
    if not any(key_of(one) == "run_dir" for one in arguments):
        arguments = [*arguments, f"run_dir={RUNS}/${{name}}_sweep"]
    return cmd_run(arguments)
