"use strict";
// The trade-off explorer: sliders for what may be given up and spent, a row for every candidate, the sentence above them.
const explorer = (() => {
  const states = new Map(); // label -> {positions of the sliders, whether earlier distillations are shown}
  const SLIDERS = [
    ["{metric} I would give up", (value) => verdict.points(value, true)],
    ["Deadline, virtual time", (value) => (value === null ? "none" : `${verdict.number(value)} h`)],
    ["Budget of the clients' compute", (value) => (value === null ? "none" : `${verdict.number(value)} CPU h`)],
    ["Limit of traffic", (value) => (value === null ? "none" : `${verdict.number(value)} GB`)],
  ];
  const STEPS = 40;

  // An element with attributes and children; texts become text nodes, whatever they hold.
  function make(name, attributes = {}, ...children) {
    const svg = ["svg", "circle", "line", "rect", "text", "title", "path", "g"].includes(name);
    const one = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    one.append(...children);
    return one;
  }

  const signed = (value, digits) => (Math.abs(value) < 0.5 * 10 ** -digits ? "" : value > 0 ? "+" : "−") + verdict.fixed(value, digits);
  const times = (value) => `${verdict.fixed(value, 2)}×`;

  // The values that a slider can take: from below the cheapest candidate to above the dearest, then no limit.
  function positions(data) {
    const worst = Math.max(6, ...verdict.decide(data.candidates, data.limits, 0).rows.map((row) => row.drop + 1));
    const drops = Array.from({ length: 10 * Math.min(20, Math.ceil(worst)) + 1 }, (_, i) => i / 10);
    const costs = [1, 2, 3].map((key) => {
      const values = data.candidates.flatMap((one) => one.scores.map((score) => score[key]));
      const [low, high] = [0.9 * Math.min(...values), 1.02 * Math.max(...values)];
      const steps = Array.from({ length: STEPS + 1 }, (_, i) => Number((low + ((high - low) * i) / STEPS).toPrecision(3)));
      return [...new Set(steps)];
    });
    return [drops, ...costs].map((values, i) => {
      const limit = data.limits[i];
      const all = limit === null || values.includes(limit) ? values : [...values, limit].sort((a, b) => a - b);
      return i ? [...all.filter((value) => value > 0), null] : all;
    });
  }

  // Dots of all seeds on one scale, a bar at the mean, a band for what the test set cannot tell, a line at the limit.
  function strip(values, seeds, mean, { scale, zero, text, band = 0, limit = null }) {
    const x = (value) => scale(value).toFixed(1);
    const label = values.map((value, i) => `seed ${seeds[i] ?? "means"}: ${text(value)}`).join("; ");
    const svg = make("svg", { viewBox: "0 0 300 46", role: "img", "aria-label": `${text(mean)}; ${label}` });
    if (band) svg.append(make("rect", { class: "band", x: x(-band), y: 2, width: x(band) - x(-band), height: 26 }));
    svg.append(make("line", { class: "zero", x1: x(zero), x2: x(zero), y1: 2, y2: 28 }));
    if (limit !== null) svg.append(make("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 0, y2: 30 }));
    const gap = values.length > 1 ? 18 / (values.length - 1) : 0;
    values.forEach((value, i) => {
      const dot = make("circle", { cx: x(value), cy: (values.length > 1 ? 6 : 15) + gap * i, r: 4 });
      dot.append(make("title", {}, `seed ${seeds[i] ?? "means"}: ${text(value)}`));
      svg.append(dot);
    });
    svg.append(make("line", { class: "mean", x1: x(mean), x2: x(mean), y1: 2, y2: 28 }));
    const middle = Math.min(Math.max(Number(x(mean)), 26), 274);
    svg.append(make("text", { x: middle, y: 43, "text-anchor": "middle" }, text(mean)));
    return svg;
  }

  function scaled(values, log) {
    const of = log ? Math.log : (value) => value;
    const [low, high] = [Math.min(...values), Math.max(...values)].map(of);
    const wide = high - low || 1;
    return (value) => 10 + (280 * (of(value) - low)) / wide;
  }

  function scales({ rows, band, limits }, samples) {
    const logs = (key) => scaled([0.8, 1.25, ...rows.flatMap((row) => row[key])], true);
    const own = samples ? band : 0;
    const drops = rows.flatMap((row) => row.drops.map((drop) => -drop));
    return {
      drop: { scale: scaled([0.5, -own, own, -limits[0], ...drops]), zero: 0, text: (v) => signed(v, 1), band: own, limit: -limits[0] },
      speed: { scale: logs("speeds"), zero: 1, text: times },
      saving: { scale: logs("savings"), zero: 1, text: times },
    };
  }

  // All that is sent, and of this what clients and servers send.
  function traffic({ gb, globalGb }) {
    const cell = make("td", { class: "traffic" }, verdict.number(gb));
    if (globalGb !== null) cell.append(make("small", {}, `clients ${verdict.number(gb - globalGb)}, servers ${verdict.short(globalGb)}`));
    return cell;
  }

  function line(choice, i, words, on, heads) {
    const [row, { candidate }] = [choice.rows[i], choice.rows[i]];
    const classes = [i === choice.chosen ? "chosen" : "", row.fails.length ? "fails" : ""].join(" ").trim();
    const name = make("th", { scope: "row" }, candidate.name);
    const verdictCell = make("td", { class: "verdict" }, words.verdicts[i]);
    const sent = traffic(row);
    sent.dataset.label = heads[4];
    if (i === choice.reference) {
      const [accuracy, hours, cpu] = [0, 1, 2].map((key) => candidate.scores.map((score) => score[key]));
      const range = hours.length > 1 ? ` (${verdict.number(Math.min(...hours))} to ${verdict.number(Math.max(...hours))})` : "";
      const cells = [
        `the reference: ${verdict.fixed(verdict.mean(accuracy), 1)} %`,
        `${verdict.number(verdict.mean(hours))} h${range}`,
        `${verdict.number(verdict.mean(cpu))} CPU h`,
      ];
      return make("tr", { class: classes }, name, ...cells.map((text) => make("td", {}, text)), sent, verdictCell);
    }
    const seeds = row.paired ? candidate.seeds.filter((seed) => choice.rows[choice.reference].candidate.seeds.includes(seed)) : [];
    const cells = [
      strip(row.drops.map((drop) => -drop), seeds, -row.drop, on.drop),
      strip(row.speeds, seeds, row.speed, on.speed),
      strip(row.savings, seeds, verdict.typical(row.savings), on.saving),
    ];
    return make("tr", { class: classes }, name, ...cells.map((svg, k) => make("td", { "data-label": heads[k + 1] }, svg)), sent, verdictCell);
  }

  function build(element, data, index) {
    const places = positions(data);
    let state = states.get(data.label);
    if (!state) {
      state = { moved: false, limits: [...data.limits], early: false };
      states.set(data.label, state);
    }
    const inputs = SLIDERS.map(([label, text], i) => {
      const at = Math.max(0, places[i].indexOf(state.limits[i]));
      const input = make("input", { type: "range", min: 0, max: places[i].length - 1, step: 1, value: at });
      const output = make("b");
      input.addEventListener("input", () => {
        state.limits[i] = places[i][Number(input.value)];
        state.moved = true;
        update();
      });
      return { input, output, text, label: make("label", {}, make("span", {}, label.replace("{metric}", data.metric[0].toUpperCase() + data.metric.slice(1))), output, input) };
    });
    const body = make("tbody");
    const base = verdict.decide(data.candidates, data.limits, 0).reference;
    const than = data.candidates[base].name;
    const heads = ["", `${data.metric} against ${than}, points`, `sooner than ${than}, times`, "client compute saved, times", "traffic, GB", "verdict"];
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), body);
    const early = data.candidates.filter((one) => one.early).length;
    const toggle = make("input", { type: "checkbox", ...(state.early ? { checked: "" } : {}) });
    toggle.addEventListener("change", () => {
      state.early = toggle.checked;
      update();
    });
    const foot = make("p", { class: "caption" });
    const command = make("code");
    const tools = copying.buttons(() => current);
    let current;

    function update() {
      const choice = verdict.decide(data.candidates, state.limits, data.samples);
      const words = verdict.sentences(choice, data);
      const candidate = choice.chosen === null ? null : data.candidates[choice.chosen];
      current = { data, choice, words, command: candidate ? candidate.command : "" };
      inputs.forEach(({ input, output, text }, i) => {
        output.textContent = text(state.limits[i]);
        input.setAttribute("aria-valuetext", output.textContent);
      });
      if (state.moved) {
        for (const key of ["headline", "detail", "evidence"]) {
          for (const said of document.querySelectorAll(`[data-say="${index}:${key}"]`)) said.textContent = words[key];
        }
      }
      const shown = choice.rows.map((_, i) => i).filter((i) => {
        return state.early || !data.candidates[i].early || i === choice.chosen || i === choice.near;
      });
      const on = scales({ ...choice, rows: shown.map((i) => choice.rows[i]) }, data.samples);
      body.replaceChildren(...shown.map((i) => line(choice, i, words, on, heads)));
      const band = data.samples ? `Band: ±${verdict.fixed(choice.band, 1)} points, the standard error of one run on ${data.samples} test ${data.unit}. ` : "";
      foot.textContent = `A dot is a seed, the bar their mean, the dashed line your limit. ${band}Every seed has the same clients and devices for all rows, so differences are taken seed by seed. Hollow dots: outside your limits.`;
      command.textContent = current.command;
      command.parentElement.hidden = !current.command;
      element.dispatchEvent(new CustomEvent("limits", { bubbles: true, detail: { index, limits: state.limits } }));
    }

    element.setDeadline = (hours) => {
      const { input } = inputs[1];
      const i = places[1].findIndex((value) => value === null || value >= hours);
      input.value = i;
      input.dispatchEvent(new Event("input"));
    };
    element.replaceChildren(
      make("div", { class: "sliders" }, ...inputs.map(({ label }) => label)),
      ...(early ? [make("label", { class: "toggle" }, toggle, ` also show what distilling earlier gives (${early} rows)`)] : []),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Candidates and verdicts" }, table),
      foot,
      make("p", { class: "command" }, "Take it: ", command),
      tools,
    );
    update();
  }

  function show(all) {
    for (const element of document.querySelectorAll("[data-explorer]")) {
      const data = all[Number(element.dataset.explorer)];
      const text = JSON.stringify(data);
      if (element.shown === text) continue; // a page that is kept fresh, and nothing new here
      build(element, data, Number(element.dataset.explorer));
      element.shown = text;
    }
  }

  return { show, make };
})();
