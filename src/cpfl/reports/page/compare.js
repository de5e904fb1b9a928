"use strict";
// Two candidates side by side: the settings that differ, and their outcomes seed by seed.
const compare = (() => {
  const MEASURES = [["{metric}, points", 0, 1], ["hours", 1, 2], ["CPU hours", 2, 1], ["traffic, GB", 3, 3]];
  const chosen = new Map(); // label of the explorer -> the two indices
  const { make } = explorer;

  const signed = (value, digits) => (value > 0 ? "+" : value < 0 ? "−" : "") + verdict.fixed(value, digits);

  function table(head, rows) {
    const cells = (kind, texts) => texts.map((text) => make(kind, {}, text));
    const body = rows.map(([name, ...texts]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells("td", texts)));
    const top = make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text))));
    const whole = make("table", {}, top, make("tbody", {}, ...body));
    return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": head[0] || "Comparison" }, whole);
  }

  function settings(one, other) {
    const keys = [...new Set([...Object.keys(one.settings), ...Object.keys(other.settings)])].sort();
    const rows = keys.filter((key) => one.settings[key] !== other.settings[key]);
    return rows.map((key) => [key, one.settings[key] ?? "–", other.settings[key] ?? "–"]);
  }

  function differences(one, other, metric) {
    const seeds = one.seeds.filter((seed) => other.seeds.includes(seed));
    const rows = MEASURES.map(([name, key, digits]) => {
      const [a, b] = [one, other].map((of) => seeds.map((seed) => of.scores[of.seeds.indexOf(seed)][key]));
      const apart = b.map((value, i) => value - a[i]);
      const more = apart.filter((value) => value > 0).length;
      const mean = seeds.length ? `${signed(verdict.mean(apart), digits)}; more in ${more} of ${seeds.length} seeds` : "no seed in common";
      return [name.replace("{metric}", metric), ...apart.map((value) => signed(value, digits)), mean];
    });
    return table(["second minus first", ...seeds.map((seed) => `seed ${seed}`), "mean"], rows);
  }

  function build(element, data) {
    let pair = chosen.get(data.label) ?? [0, data.candidates.length - 1];
    if (pair.some((i) => i >= data.candidates.length)) pair = [0, data.candidates.length - 1];
    const out = make("div");
    const selects = pair.map((at, k) => {
      const select = make("select", {}, ...data.candidates.map((one, i) => make("option", { value: i }, one.name)));
      select.value = at;
      select.addEventListener("change", update);
      return make("label", {}, ["First: ", "Second: "][k], select);
    });

    function update() {
      pair = selects.map((label) => Number(label.querySelector("select").value));
      chosen.set(data.label, pair);
      const [one, other] = pair.map((i) => data.candidates[i]);
      const rows = settings(one, other);
      const same = make("p", { class: "caption" }, "They have the same settings.");
      out.replaceChildren(rows.length ? table(["setting", one.name, other.name], rows) : same, differences(one, other, data.metric));
    }
    element.replaceChildren(make("p", { class: "pair" }, ...selects), out);
    update();
  }

  function show(all) {
    for (const element of document.querySelectorAll("[data-compare]")) {
      const data = all[Number(element.dataset.compare)];
      const text = JSON.stringify(data);
      if (element.shown === text) continue; // a page that is kept fresh, and nothing new here
      build(element, data);
      element.shown = text;
    }
  }

  return { show };
})();
