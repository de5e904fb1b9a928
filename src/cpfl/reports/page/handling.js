"use strict";
// What a reader does in a figure: drag the deadline or the quorum, zoom, and change what its title speaks of.
const handling = (() => {
  const has = (spec, name) => (spec.params || []).some((param) => param.name === name);
  const zooms = (spec) => (spec.layer || []).some((layer) => (layer.params || []).some((param) => param.name === "zoom"));

  // Calls `set` with the value on the x axis while the mouse, a pen or a finger is down on the figure.
  function dragged(view, element, set) {
    const svg = element.querySelector("svg");
    const move = (event) => {
      if (event.buttons & 1) set(view.scale("x").invert(event.offsetX - view.origin()[0]));
    };
    svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointermove", move);
    svg.style.touchAction = "pan-y";
  }

  // The quorum of the cohorts that had stopped by then, in the steps of its slider.
  function quorum(view, spec, at) {
    const own = spec.datasets.cohorts.filter((row) => row.n === view.signal("which_n") && row.seed === view.signal("which_seed"));
    const share = Math.max(0, ...own.filter((row) => row.hours <= at).map((row) => row.share));
    view.signal("which_quorum", Math.max(5, 5 * Math.floor(share / 5 + 1e-6))).runAsync();
  }

  // Buttons for those who have no wheel; the last is the way back.
  function zoom(view, element) {
    const ends = [["zoom_hours", "x"], ["zoom_loss", "y"]].map(([signal, scale]) => [signal, view.scale(scale).domain(), scale]);
    const show = (signal, domain) => view.signal(signal, domain);
    const by = (factor) => () => {
      for (const [signal, , scale] of ends) {
        const [low, high] = view.scale(scale).domain();
        const [middle, half] = [(low + high) / 2, (factor * (high - low)) / 2];
        show(signal, [middle - half, middle + half]);
      }
    };
    const along = (share) => () => {
      const [low, high] = view.scale("x").domain();
      show("zoom_hours", [low + share * (high - low), high + share * (high - low)]);
    };
    const whole = () => ends.forEach(([signal]) => show(signal, null));
    const actions = { "Zoom in": by(0.5), "Zoom out": by(2), Earlier: along(-0.25), Later: along(0.25), "Whole figure": whole };
    const buttons = Object.entries(actions).map(([name, act]) => {
      const button = explorer.make("button", { type: "button" }, name);
      button.addEventListener("click", async () => {
        act();
        await view.runAsync();
      });
      return button;
    });
    element.append(explorer.make("div", { class: "zoom", role: "group", "aria-label": "Zoom" }, ...buttons));
  }

  // The title states what was found for the n and seed that are shown.
  function title(view, spec, element) {
    const found = spec.usermeta?.findings;
    const head = element.closest("figure").querySelector("h3");
    if (!found) return;
    const shown = (key, value) => value === undefined || value === view.signal(`which_${key}`);
    const text = found.find((one) => shown("n", one.n) && shown("seed", one.seed))?.text;
    head.replaceChildren(...(text ? [`${text} `, explorer.make("small", {}, head.dataset.title)] : [head.dataset.title]));
  }

  function ready(view, spec, element) {
    if (has(spec, "deadline")) dragged(view, element, (at) => document.querySelector("[data-explorer]")?.setDeadline?.(at));
    if (has(spec, "which_quorum")) dragged(view, element, (at) => quorum(view, spec, at));
    if (zooms(spec)) zoom(view, element);
  }

  return { has, ready, title };
})();
