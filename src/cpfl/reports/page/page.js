"use strict";
// Draws the figures in the page's colours, and updates a page that has an address to poll.
(() => {
  const drawn = new Map(); // id -> {spec, view}
  const main = document.getElementById("report");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let { figures, explorers } = JSON.parse(document.getElementById("figures").textContent);

  function colours() {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(name).trim();
    const [ink, quiet, line] = [value("--ink"), value("--quiet"), value("--line")];
    const font = "system-ui, sans-serif";
    return {
      background: "transparent",
      font,
      axis: { labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line },
      legend: { labelColor: ink, titleColor: quiet },
      text: { color: ink },
    };
  }

  // One selector of n and seed for all figures that show one of several.
  const picked = {}; // n and seed
  const pictureOf = (id) => main.querySelector(`[data-figure="${CSS.escape(id)}"]`);
  const rowsOf = (spec) => Object.values(spec.datasets).flat();
  const picks = (spec, key) => (spec.params || []).some((param) => param.name === `which_${key}` && !param.bind);

  function pick(key, view, spec) {
    if (!picks(spec, key) || picked[key] === undefined) return;
    if (rowsOf(spec).some((row) => String(row[key]) === picked[key])) view.signal(`which_${key}`, key === "n" ? Number(picked[key]) : picked[key]);
  }

  function selectors() {
    const box = document.getElementById("pick");
    if (!box) return;
    const labels = ["n", "seed"].map((key) => {
      const specs = Object.values(figures).filter((spec) => picks(spec, key));
      const values = [...new Set(specs.flatMap((spec) => rowsOf(spec).map((row) => row[key]).filter((value) => value !== undefined).map(String)))];
      values.sort((a, b) => (BigInt(a) < BigInt(b) ? -1 : 1));
      const first = specs.length ? String(specs[0].params.find((param) => param.name === `which_${key}`).value) : "";
      if (!values.includes(picked[key])) picked[key] = values.includes(first) ? first : values[0];
      const select = explorer.make("select", {}, ...values.map((value) => explorer.make("option", {}, value)));
      select.value = picked[key] ?? "";
      select.addEventListener("change", async () => {
        picked[key] = select.value;
        for (const [id, { spec, view }] of drawn) {
          pick(key, view, spec);
          await view.runAsync();
          handling.title(view, spec, pictureOf(id));
        }
      });
      return [values, explorer.make("label", {}, `${key} = `, select)];
    });
    const now = labels.filter(([values]) => values.length > 1).map(([, label]) => label);
    if (box.textContent + [...box.querySelectorAll("select")].map((one) => one.value) === now.map((one) => one.textContent).join("") + now.map((one) => one.querySelector("select").value)) return;
    box.replaceChildren(...now);
  }

  // The deadline that the explorer's slider has.
  let due = 0;
  main.addEventListener("limits", async ({ detail }) => {
    if (detail.index > 0 || due === (detail.limits[1] ?? 0)) return;
    due = detail.limits[1] ?? 0;
    for (const { spec, view } of drawn.values()) {
      if (handling.has(spec, "deadline")) await view.signal("deadline", due).runAsync();
    }
  });

  const shape = ({ datasets, usermeta, ...rest }) => JSON.stringify(rest);
  const menus = (spec) => (spec.params || []).filter((param) => param.bind).map((param) => param.name);

  async function draw(id) {
    const element = pictureOf(id);
    if (!element) return;
    const old = drawn.get(id);
    const chosen = old ? menus(old.spec).map((name) => [name, old.view.signal(name)]) : [];
    const focused = element.contains(document.activeElement);
    if (old) old.view.finalize();
    const config = colours();
    if (element.clientWidth < 420) config.legend.columns = 2;
    const { view } = await vegaEmbed(element, figures[id], {
      actions: false,
      renderer: "svg",
      config,
      tooltip: { theme: dark.matches ? "dark" : "light" },
      logLevel: 1, // errors only: while no cohort has stopped, vega would warn that there are no stops
    });
    drawn.set(id, { spec: figures[id], view });
    for (const key of ["n", "seed"]) pick(key, view, figures[id]);
    if (handling.has(figures[id], "deadline")) view.signal("deadline", due);
    await view.runAsync();
    handling.ready(view, figures[id], element);
    handling.title(view, figures[id], element);
    const offered = Object.fromEntries((figures[id].params || []).map((param) => [param.name, param.bind]));
    for (const [name, value] of chosen) {
      if (offered[name] && (offered[name].options ?? [value]).includes(value)) await view.signal(name, value).runAsync();
    }
    for (const select of element.querySelectorAll("select")) {
      const label = select.closest("label") || select.parentElement;
      select.setAttribute("aria-label", `${label.textContent.includes("run") ? "run" : "n"} to draw`);
      if (focused) select.focus();
    }
    element.dataset.drawn = "yes";
  }

  // Where only the rows are new, the chart stays, and so does an open menu.
  async function redraw(id) {
    const old = drawn.get(id);
    if (!old || shape(old.spec) !== shape(figures[id])) return draw(id);
    let changed = false;
    for (const [name, rows] of Object.entries(figures[id].datasets)) {
      if (JSON.stringify(rows) === JSON.stringify(old.spec.datasets[name])) continue;
      old.view.data(name, rows);
      changed = true;
    }
    drawn.set(id, { spec: figures[id], view: old.view });
    if (changed) await old.view.runAsync();
    handling.title(old.view, figures[id], pictureOf(id));
  }

  // First what the reader sees, then the rest while nothing else is to do: the page answers in between.
  const idle = () => new Promise((go) => (window.requestIdleCallback ? requestIdleCallback(go, { timeout: 300 }) : setTimeout(go)));
  function inView(id) {
    const box = pictureOf(id)?.getBoundingClientRect();
    return box && box.bottom > 0 && box.top < innerHeight;
  }
  async function drawAll() {
    const left = new Set(Object.keys(figures));
    while (left.size) {
      await idle();
      const id = [...left].find(inView) ?? [...left][0];
      left.delete(id);
      if (figures[id]) await draw(id);
    }
    document.documentElement.dataset.ready = "yes";
  }

  const parts = (root) => new Map([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const pictures = (root) => [...root.querySelectorAll("[data-figure]")].map((element) => element.dataset.figure).join();
  let shown = new Map([...parts(main)].map(([key, part]) => [key, part.innerHTML]));

  // Only what has changed is replaced, so that the reader does not lose the position on the page.
  async function update(next) {
    const page = new DOMParser().parseFromString(next.body, "text/html").body;
    const [now, after] = [parts(main), parts(page)];
    ({ figures, explorers } = next);
    const same = [...now.keys()].join() === [...after.keys()].join() && pictures(main) === pictures(page);
    if (same) {
      for (const [key, part] of after) if (shown.get(key) !== part.innerHTML) now.get(key).innerHTML = part.innerHTML;
    } else {
      for (const { view } of drawn.values()) view.finalize();
      drawn.clear();
      main.style.minHeight = `${main.offsetHeight}px`; // until all is drawn again; else the page would jump
      main.innerHTML = next.body;
    }
    shown = new Map([...after].map(([key, part]) => [key, part.innerHTML]));
    explorer.show(explorers);
    compare.show(explorers);
    selectors();
    for (const id of Object.keys(figures)) await redraw(id);
    main.style.minHeight = "";
  }

  async function poll(address, seconds) {
    const offline = document.getElementById("offline");
    let last = "";
    for (;;) {
      await new Promise((wake) => setTimeout(wake, 1000 * seconds));
      if (document.hidden) continue;
      try {
        const answer = await fetch(address, { cache: "no-cache" });
        const text = await answer.text();
        if (answer.ok && text !== last) await update(JSON.parse((last = text)));
        offline.hidden = answer.ok;
      } catch {
        offline.hidden = false; // it may come back
      }
    }
  }

  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  explorer.show(explorers);
  compare.show(explorers);
  selectors();
  performance.mark("usable"); // sliders and selectors answer; the figures follow
  addEventListener("DOMContentLoaded", async () => {
    await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
    performance.mark("painted");
    await drawAll();
    const address = document.body.dataset.refresh;
    if (address) poll(address, 2);
  });
})();
