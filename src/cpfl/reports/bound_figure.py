"""The figure of the bound: its terms stacked against n, and the measured risks that it bounds."""

from collections.abc import Sequence

from cpfl.reports import style
from cpfl.reports.style import GREY, PALETTE, Row, Spec, field, mark

TERMS = {
    "risk": "risk on the clients' samples",
    "half_divergence": "½ divergence",
    "joint": "λ",
    "hoeffding": "Hoeffding term",
}
RISKS = {"global_risk": "global model", "cohort_risk": "cohort models"}
VACUOUS = 1.0  # no risk is larger


def bound_figure(rows: Sequence[Row]) -> Spec:
    """A stacked bar for every n with the measured risks as marks; a dashed line where the bound becomes vacuous."""
    bars = [
        {"n": row["n"], "term": name, "order": order, "value": row[key]}
        for row in rows
        for order, (key, name) in enumerate(TERMS.items())
    ]
    points = [{"n": row["n"], "of": name, "value": row[key]} for row in rows for key, name in RISKS.items()]
    axes, tooltip = style.channels("bound")
    colour = style.colour_of("term", list(TERMS.values()), PALETTE)
    marks = field("of:N", title="measured risk", scale={"domain": list(RISKS.values()), "range": ["diamond", "circle"]})
    shown = {"tooltip": style.tips(n="", of=["of", ""], value=["risk", ".3f"])}
    layers = [
        mark("bar", axes | tooltip | {"color": colour, "order": field("order:Q")}, opacity=0.85),
        mark("rule", {"y": {"datum": VACUOUS}}, color=GREY, strokeDash=[6, 4], strokeWidth=2),
        mark("point", axes | shown | {"shape": marks}, data="points", color="black", fill="white", size=90, opacity=1),
    ]
    values = "; ".join(f"n = {row['n']}: {row['bound']:.2f} for a risk of {row['global_risk']:.2f}" for row in rows)
    title = style.FIGURES["bound"]["title"].format(settings=f", {rows[0]['settings']}" if "settings" in rows[0] else "")
    return style.chart(f"The bound against n. {values}", *layers, bars=bars, points=points) | {"title": title}
