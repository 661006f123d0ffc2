"""The two JavaScript libraries that are embedded in the page, out of their Python packages.

Vega-Lite draws the linked charts from a description in JSON; vl-convert-python carries it, and
nothing else of it is used here. DataTables sorts and filters the tables; itables carries it.
Together they are about 1.8 MB of a page, a third of plotly.js alone.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup


@dataclass(frozen=True)
class Libraries:
    """charts: a script that sets window.vegaEmbed; tables, table_style: a module whose default
    export is DataTable, as a data URI, and its style sheet."""

    charts: Markup
    tables: str
    table_style: Markup


@lru_cache(maxsize=1)  # bundling takes two seconds
def libraries() -> Libraries:
    """Both, ready to be put into a page."""
    import itables
    import vl_convert

    tables = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    code = base64.b64encode(tables.read_bytes()).decode("ascii")
    return Libraries(
        charts=_inside("script", vl_convert.javascript_bundle()),  # type: ignore[call-arg]
        tables=f"data:text/javascript;base64,{code}",
        table_style=_inside("style", tables.with_suffix(".css").read_text(encoding="utf-8")),
    )


def _inside(element: str, text: str) -> Markup:
    """Trusted text that cannot end the element that it is in."""
    return Markup(text.replace(f"</{element}", f"<\\/{element}"))
