"""`dspine serve`: the built-in server."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from dspine.cli import options as o
from dspine.cli.console import answer, note, waiting
from dspine.cli.heavy import uncollected
from dspine.cli.models import choose_drafter, fastest_dtype, open_models, why_plain
from dspine.errors import ConfigError

SERVER = "The server"
LIMITS = "Limits"
KEY = "DSPINE_API_KEY"


def serve(
    target: o.TargetOption = "smollm2",
    drafter: o.DrafterOption = None,
    no_drafter: o.NoDrafterOption = False,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    verify: o.VerifyOption = None,
    measure: o.MeasureOption = False,
    kernels: o.KernelsOption = o.KernelChoice.auto,
    rollback: o.RollbackOption = o.RollbackChoice.auto,
    capture: o.CaptureOption = o.CaptureChoice.auto,
    thinking: o.ThinkingOption = False,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.", rich_help_panel=SERVER)
    ] = 8000,
    name: Annotated[
        str | None,
        typer.Option(
            help="What clients call the model. Default: --target.", rich_help_panel=SERVER, show_default=False
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the key that clients must show. The variable {KEY} does the same; without either there is "
            "no key.",
            rich_help_panel=SERVER,
            show_default=False,
        ),
    ] = None,
    inspect: Annotated[
        bool,
        typer.Option(
            "--inspect",
            help="Also serve a page that shows an answer round by round, beside plain decoding.",
            rich_help_panel=SERVER,
        ),
    ] = False,
    slots: Annotated[int, typer.Option(min=1, help="Answers in progress at once.", rich_help_panel=LIMITS)] = 8,
    queue: Annotated[
        int, typer.Option(min=0, help="Answers that may wait for a slot; more get a 429.", rich_help_panel=LIMITS)
    ] = 64,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most new tokens of an answer.", rich_help_panel=LIMITS)
    ] = 4096,
    max_body: Annotated[
        int, typer.Option(min=1024, help="Largest request, in bytes.", rich_help_panel=LIMITS)
    ] = 1048576,
    drain: Annotated[
        int,
        typer.Option(min=0, help="Seconds that answers may go on after the signal to stop.", rich_help_panel=LIMITS),
    ] = 30,
) -> None:
    """Serve OpenAI's API on this machine: chat completions, completions, models.

    For one machine and for evaluation; production belongs to SGLang. The address goes to standard output once requests
    are let in. Ctrl-C (or SIGTERM) lets answers in progress end, a second Ctrl-C does not.

    Examples:

        dspine serve

        dspine serve --inspect

        DSPINE_API_KEY=... dspine serve --host 0.0.0.0 --port 8080 --slots 16
    """
    key = _read_key(api_key_file)
    chosen = choose_drafter(target, drafter, no_drafter, rollback)
    if name is not None and not name.strip():
        raise typer.BadParameter("--name is empty; clients have to say it")
    if inspect and chosen is None:
        raise typer.BadParameter("--inspect shows what a drafter does, and there is none; name one with --drafter")
    verified = o.verify_choice(verify, why_plain(target, no_drafter) if chosen is None else None, measure)
    _check_installed()

    with waiting("Starting"), uncollected():
        from dspine.decode.engine import Engine
        from dspine.serve.http import server
        from dspine.serve.http.limits import Limits

    limits = Limits(slots=slots, waiting=queue, max_tokens=max_tokens, body_bytes=max_body, drain_seconds=drain)
    taken = server.bind(host, port)
    models = open_models(
        target,
        chosen,
        dtype=dtype or fastest_dtype(device),
        device=device,
        thinking=thinking,
        verify=verified,
        kernels=kernels.value,
        rollback=rollback,
        capture=capture.value,
        measure=measure,
        max_batch=slots,
    )
    if chosen is None and not no_drafter:
        note(f"no drafter is shipped for {target}: decoding plainly; name one with --drafter")
    if key is None and not _loopback(host):
        note(f"warning: anybody who reaches {host} may use this server; set {KEY} to ask for a key")
    plain = Engine(models.target, max_batch=1, kernels=kernels.value, capture=capture.value) if inspect else None
    with waiting("Warming up"):
        server.warm_up(models.engine, slots)
    where = models.measured_on()
    served = server.Served(models.target, models.engine, name or target, where, plain, thinking)
    app = server.build(served, limits, key)
    url = f"http://{_in_url(host)}:{taken.getsockname()[1]}"
    note(
        f"{served.name}, drafter {where['drafter'] or 'none'}, {where['dtype']} on {where['device']}, {slots} slots; "
        "Ctrl-C stops"
    )
    if inspect:
        note(f"look at answers: {url}/inspect/")
    server.serve(taken, app, limits, lambda: answer(f"{url}/v1\n"))


def _read_key(file: Path | None) -> str | None:
    """The key of the file or of the environment; never of the command line, which others on the machine can read.

    Raises:
        ConfigError: it cannot be read, is empty, or both say one.
    """
    given = os.environ.get(KEY)
    if file is None and given is None:
        return None
    if file is not None and given is not None:
        raise ConfigError(f"both {KEY} and --api-key-file name a key", "Give one of them.")
    if file is not None:
        try:
            given = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the key cannot be read from {file}: {error}", "Give a readable text file.") from error
    key = (given or "").strip()
    if not key:
        raise ConfigError(f"the key of {file or KEY} is empty", "Write one into it, or leave it away.")
    return key


def _check_installed() -> None:
    """Refuse to start without what `pip install dspine[serve]` brings.

    Raises:
        ConfigError: naming what is missing.
    """
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the server needs {', '.join(missing)}, which is not installed", "Run: pip install 'dspine[serve]'"
        )


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
